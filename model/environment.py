"""The environment variables of a run's processes: an allowlist, without which the shell could change results.

Libraries read hundreds of variables, and many decide the last bits of a sum: the instruction set, the number of
threads, another memory allocator. Variables that are not named here are removed. A recipe sets what it needs in
`train.environment`, which is part of the identity.

`python -m model.environment ARGUMENTS` runs `python ARGUMENTS` with this environment.
"""

import os
import sys
from collections.abc import Iterable, Mapping


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FIXED = {
    # Decides the encoding of what a process reads and prints.
    "LC_ALL": "C.UTF-8",
    # Spinning threads take the CPU from the thread they wait for as soon as another process runs: five times slower
    # with one busy process beside it on two cores. libgomp reads it once, when torch is imported.
    "OMP_WAIT_POLICY": "passive",
    # By default CUDA numbers the fastest device first, unlike `nvidia-smi`.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
"""Values that every process gets."""

COMMON = _names(
    "PATH LD_LIBRARY_PATH DYLD_LIBRARY_PATH HOME USER LOGNAME SHELL PWD TMPDIR TEMP TMP HOSTNAME TZ TZDIR"
    " VIRTUAL_ENV CONDA_PREFIX CUDA_HOME CUDA_PATH CUDA_CACHE_PATH CXX CC NUMBA_CACHE_DIR TORCHINDUCTOR_CACHE_DIR"
    " TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR TORCH_HOME"
    " PYTHONPATH PYTHONHOME PYTHONPLATLIBDIR PYTHONUSERBASE PYTHONNOUSERSITE PYTHONSAFEPATH PYTHONPYCACHEPREFIX"
    " PYTHONHASHSEED PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED PYTHONFAULTHANDLER PYTHONWARNINGS PYTHONASYNCIODEBUG"
    " SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE"
    " HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy ftp_proxy all_proxy no_proxy"
    " BOTO_CONFIG STORAGE_EMULATOR_HOST KRB5CCNAME NETRC CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES"
    " RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK"
    " PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF TORCH_DISTRIBUTED_DEBUG"
    " RAYON_NUM_THREADS TOKENIZERS_PARALLELISM"
    " KMP_DUPLICATE_LIB_OK KMP_INIT_AT_FORK PYTORCH_NVML_BASED_CUDA_CHECK DS_ACCELERATOR"
    " TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
)
"""Paths, credentials, devices, ranks; threads and hashing that change no byte; and what scikit-learn, DeepSpeed and
this package set themselves.

The compiler (CXX) enters the identity by its version instead."""

COMMON_PREFIXES = (
    *("BESSEMER_", "XDG_", "AWS_", "GOOGLE_", "GCE_", "GCSFS_", "GCLOUD_", "CLOUDSDK_", "AZURE_", "HF_", "FSSPEC_"),
    *("NCCL_", "GLOO_", "MASTER_", "SLURM_", "PMI_", "PMIX_", "TORCHELASTIC_", "TORCH_NCCL_", "KUBERNETES_"),
)
"""Prefixes of names: credentials of stores, and how the ranks of a training find each other."""

RUN_ONLY = _names(
    "TERM COLORTERM COLUMNS LINES NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE TERMINAL_WIDTH PAGER EDITOR VISUAL"
    " BROWSER DISPLAY WAYLAND_DISPLAY SSH_AUTH_SOCK SSH_CONNECTION SSH_TTY CI GITHUB_ACTIONS DO_NOT_TRACK"
    " NOTIFY_SOCKET INVOCATION_ID PYTHONIOENCODING"
)

RUN_PREFIXES = ("PREFECT_", "DASK_", "WANDB_", "MLFLOW_", "OTEL_", "GIT_", "PG", "DOCKER_", "SENTRY_")
"""What a run's own process needs in addition: a terminal, Prefect's settings, the services that it reports to."""

READ_BY = {
    "": ("PYTHON", "LD_", "DYLD_", "GLIBC_", "LANG", "LC_"),
    "numba": ("NUMBA_", "LLVM_"),
    "numpy": ("NPY_", "NUMPY_"),
    "pyarrow": ("ARROW_",),
    "torch": (
        *("ATEN_", "ONEDNN_", "DNNL_", "MKLDNN_", "MKL_", "OMP_", "KMP_", "GOMP_", "OPENBLAS_", "GOTO_", "BLIS_"),
        *("VECLIB_", "NUMEXPR_", "TORCH", "PYTORCH_", "TRITON_", "CUDA_", "CUBLAS", "CUDNN_", "NVIDIA_", "DS_"),
        "MALLOC_",
    ),
}
"""Library -> prefixes of names that it or its dependencies read; the first are those of Python and the loader."""

COMPLETION = "_BESSEMER_COMPLETE"
"""Set where a shell asks the command line for completions, through variables of other names too."""

LEFT_OUT = "BESSEMER_LEFT_OUT"
"""Names of deciding variables that this process was started without."""


def trainer_environment(known: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a trainer and its ranks: what passes of `known`, and what is `given`."""
    return {**_passing(known, COMMON, COMMON_PREFIXES), **FIXED, **given}


def run_environment(known: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that builds stages, and of its workers: what passes of `known`."""
    return {**_passing(known, COMMON | RUN_ONLY, (*COMMON_PREFIXES, *RUN_PREFIXES)), **FIXED}


def deciding_variables(known: Mapping[str, str], libraries: Iterable[str] = READ_BY) -> dict[str, str]:
    """Return the variables that do not pass, and that Python, the loader or one of these libraries reads."""
    passing = run_environment(known)
    prefixes = tuple(prefix for reader in {"", *libraries} for prefix in READ_BY.get(reader, ()))
    return {
        name: value
        for name, value in sorted(known.items())
        if name.startswith(prefixes) and passing.get(name) != value and not _is_harmless_locale(name, value)
    }


def describe_left_out(known: Mapping[str, str]) -> list[str]:
    """Describe the deciding variables that this process was started without, and those that it still has."""
    left_out, present = known.get(LEFT_OUT, "").replace(",", ", "), ", ".join(deciding_variables(known))
    sentences = []
    if left_out:
        sentences.append(
            f"left out of this run's environment: {left_out}. Libraries that read such variables may compute other"
            f" bits; one that training needs belongs in train.environment"
        )
    if present:
        sentences.append(
            f"{present}: libraries in this process may have read it, so it is part of the identity of what is built"
            f" here. Training runs without it, unless train.environment names it"
        )
    return sentences


def filter_environment() -> None:
    """Remove variables that do not pass from this process's environment.

    Where deciding variables were among them, the interpreter may have read them, so it is started again by `exec`.
    Nothing is removed where a shell asks for completions.
    """
    if COMPLETION in os.environ:
        return
    passing, found = run_environment(os.environ), deciding_variables(os.environ)
    if found:
        sys.stdout.flush()
        sys.stderr.flush()
        left_out = {LEFT_OUT: ",".join(found)}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**passing, **left_out})
    os.environ.clear()
    os.environ.update(passing)


def reach_this_machine_directly() -> None:
    """Exclude this machine from the proxy (`http_proxy`) of this process and its children: a proxy cannot reach the
    server, and would receive its password."""
    named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if named != "*":
        all_named = dict.fromkeys([*filter(None, named.split(",")), "localhost", "127.0.0.1", "::1"])
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(all_named)


def _passing(known: Mapping[str, str], names: frozenset[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in known.items() if name in names or name.startswith(prefixes)}


def _is_harmless_locale(name: str, value: str) -> bool:
    """Return whether a locale variable selects UTF-8, as Python does where no locale is chosen."""
    utf_8 = value in ("", "C", "POSIX") or value.partition("@")[0].lower().endswith(("utf-8", "utf8"))
    return utf_8 and name.startswith(("LANG", "LC_"))


if __name__ == "__main__":
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], run_environment(os.environ))

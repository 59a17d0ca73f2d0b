"""The environment in which a process of a run starts: variables that pass by name, and no others.

Libraries read hundreds of variables, and many decide the last bits of a sum: the widest instructions, the number of
threads, a replaced memory allocator. What is not named here is left out, so that none that nobody thought of decides. A
recipe brings back what it needs as `train.environment`, and there it counts.

`python -m model.config.environment ARGUMENTS` runs `python ARGUMENTS` so.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from typing import NoReturn


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FIXED = {
    # Decides the encoding of what a process reads and prints.
    "LC_ALL": "C.UTF-8",
    # Threads that spin while they wait take the processor from the thread they wait for as soon as another process
    # runs: five times slower with one busy neighbour on two cores. libgomp reads it once, when torch is loaded.
    "OMP_WAIT_POLICY": "passive",
    # Without it, CUDA counts the fastest device first, and `nvidia-smi` by place.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
"""What every process is told, whatever its parent was told."""

PLACES = _names(
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
"""Where things are, who may read them, which devices there are; how many threads tokenize and how text is hashed, which
changes no byte; and what scikit-learn, DeepSpeed and this package set for themselves once they are loaded.

Which compiler is called (CXX) counts by what it says of itself."""

FAMILIES = (
    *("BESSEMER_", "XDG_", "AWS_", "GOOGLE_", "GCE_", "GCSFS_", "GCLOUD_", "CLOUDSDK_", "AZURE_", "HF_", "FSSPEC_"),
    *("NCCL_", "GLOO_", "MASTER_", "SLURM_", "PMI_", "PMIX_", "TORCHELASTIC_", "TORCH_NCCL_", "KUBERNETES_"),
)
"""Beginnings of names: credentials of stores, and how the ranks of a training find each other."""

OF_A_RUN = _names(
    "TERM COLORTERM COLUMNS LINES NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE TERMINAL_WIDTH PAGER EDITOR VISUAL"
    " BROWSER DISPLAY WAYLAND_DISPLAY SSH_AUTH_SOCK SSH_CONNECTION SSH_TTY CI GITHUB_ACTIONS DO_NOT_TRACK"
    " NOTIFY_SOCKET INVOCATION_ID PYTHONIOENCODING"
)

FAMILIES_OF_A_RUN = ("PREFECT_", "DASK_", "WANDB_", "MLFLOW_", "OTEL_", "GIT_", "PG", "DOCKER_", "SENTRY_")
"""What a run's own process needs beside these: a terminal, Prefect's settings, the services that it reports to."""

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
"""Library -> beginnings of names that it, or what it is made of, reads; the first are of Python and the loader."""

LEFT_OUT = "BESSEMER_LEFT_OUT"
"""Names of deciding variables that the parent of this process had and did not pass on."""


def trainer_environment(known: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What of `known` passes to a trainer, its ranks and whatever is asked in their place, and what is `given`."""
    return {**_passing(known, PLACES, FAMILIES), **FIXED, **given}


def run_environment(known: Mapping[str, str]) -> dict[str, str]:
    """What of `known` passes to a process that builds stages, and to its workers."""
    return {**_passing(known, PLACES | OF_A_RUN, (*FAMILIES, *FAMILIES_OF_A_RUN)), **FIXED}


def deciding_variables(known: Mapping[str, str], libraries: Iterable[str] = READ_BY) -> dict[str, str]:
    """Those variables that do not pass and that Python, the loader or one of these libraries reads, by name."""
    passing = run_environment(known)
    beginnings = tuple(beginning for reader in {"", *libraries} for beginning in READ_BY.get(reader, ()))
    return {
        name: value
        for name, value in sorted(known.items())
        if name.startswith(beginnings) and passing.get(name) != value and not _is_harmless_locale(name, value)
    }


def describe_left_out(known: Mapping[str, str]) -> list[str]:
    """Sentences about the deciding variables that a process was started without, and those that it has all the same."""
    left_out, there = known.get(LEFT_OUT, "").replace(",", ", "), ", ".join(deciding_variables(known))
    told = []
    if left_out:
        told.append(
            f"{left_out}: left out of this run's environment, since libraries read it and may compute other bits; what"
            f" training needs of it goes into train.environment"
        )
    if there:
        told.append(
            f"{there}: libraries in this process may have read it, so that it counts in the identity of what is built"
            f" here; training goes without it, unless train.environment names it"
        )
    return told


def filter_environment() -> None:
    """Leave out of this process's environment what does not pass.

    Where a deciding variable was among it, the interpreter has read it already, and is started again in our place.
    """
    passing, found = run_environment(os.environ), deciding_variables(os.environ)
    if found:
        sys.stdout.flush()
        sys.stderr.flush()
        told = {LEFT_OUT: ",".join(found)}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**passing, **told})
    os.environ.clear()
    os.environ.update(passing)


def _passing(known: Mapping[str, str], names: frozenset[str], families: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in known.items() if name in names or name.startswith(families)}


def _is_harmless_locale(name: str, value: str) -> bool:
    """Python takes UTF-8 where no locale is chosen; which others do is told by the end of their names."""
    utf_8 = value in ("", "C", "POSIX") or value.partition("@")[0].lower().endswith(("utf-8", "utf8"))
    return utf_8 and name.startswith(("LANG", "LC_"))


def _run(arguments: list[str]) -> NoReturn:
    os.execve(sys.executable, [sys.executable, *arguments], run_environment(os.environ))


if __name__ == "__main__":
    _run(sys.argv[1:])

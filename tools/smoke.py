"""What an installed thinwire must be able to do, in a few seconds and in one process: `python smoke.py compiled`.

Run by tools/try_wheels.py in a folder without the sources. The argument is "compiled" or "reference": the kernels
that are expected.
"""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import files, metadata
from pathlib import Path

import torch

import thinwire as tw


def main() -> None:
    """Encode and decode with every tier, and compare the bytes."""
    expected = sys.argv[1]
    root = Path(tw.__file__).parent
    assert "site-packages" in root.parts, f"{root} is not an installation"
    shipped = {str(name) for name in files("thinwire") or []}
    assert {"thinwire/py.typed"} <= shipped
    assert {"LICENSE", "NOTICE"} <= {name.rpartition("/")[2] for name in shipped}
    assert not [name for name in shipped if name.endswith((".cpp", ".h"))]

    x = torch.randn(100_003, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tier = tw.kernels.select(x).name
        tw.kernels.select(x)
    told = [str(one.message) for one in said if "thinwire" in str(one.message)]
    layout, coded = tw.Layout.flat(len(x)), ["topk:ratio=0.01"] if expected == "compiled" else []
    for name in ["qsgd:bits=4", "terngrad", "scaled-sign", "eden:bits=2", *coded]:
        compressor, made = tw.compressors.get(name), {}
        for kernels in tw.kernels.names():
            if kernels != "gpu":
                with tw.kernels.force(kernels):
                    payload = compressor.encode(x, layout)
                    made[kernels] = (payload.data, compressor.decode(payload, layout))
        for data, out in made.values():
            assert torch.equal(data, made["reference"][0]), f"{name}: the bytes differ between {sorted(made)}"
            assert torch.equal(out, made["reference"][1]), f"{name}: results differ between {sorted(made)}"
    if expected == "compiled":
        assert tier.startswith("cpu-"), tier
        assert not told
        symbols = (x.abs() * 4).clamp(max=15).to(torch.uint8)
        coder = tw.codecs.Rans()
        assert torch.equal(coder.unpack(coder.pack(symbols, 4), len(symbols), 4), symbols)
    else:
        assert tier == "reference"
        assert len(told) == 1, told
        print(told[0])
        try:
            tw.codecs.Rans().pack(torch.zeros(8, dtype=torch.uint8), 4)
        except ImportError as error:
            print(error)
        else:
            raise AssertionError("entropy codes need C++")
    print(
        f"thinwire {metadata('thinwire')['Version']}, Python {sys.version.split()[0]}, torch {torch.__version__}: "
        f"{tier}, of {', '.join(tw.kernels.names())}; the same bytes from all of them"
    )


if __name__ == "__main__":
    main()

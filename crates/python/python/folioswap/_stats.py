"""Figures of a pool, for programs and for people."""

from __future__ import annotations

import html
from typing import Any

from . import _native


class Stats(dict[str, Any]):
    """Figures of a pool at one moment: a dict with a readable ``repr``, and a bar in notebooks.

    >>> import folioswap
    >>> stats = folioswap.Pool("64M").stats()
    >>> stats["swapped_in_bytes"], "swapped" in repr(stats)
    (0, True)
    """

    def _parts(self) -> list[tuple[str, int, str]]:
        return [
            ("mapped", self["mapped_bytes"], "#4c78a8"),
            ("standby", self["standby_bytes"], "#9ecae9"),
            ("swapped", self["swapped_bytes"], "#f2a154"),
        ]

    def _rates(self) -> list[str]:
        lines = []
        for device in self["devices"]:
            line = f"{device['name']}: {_native.show(device['used_bytes'])} used"
            for direction in ("read", "written"):
                moved, busy_ns = device[f"{direction}_bytes"], device[f"{direction}_busy_ns"]
                line += f", {direction} {_native.show(moved)}"
                if moved and busy_ns:
                    line += f" ({moved / busy_ns:.2f} GB/s a request)"
            lines.append(line)
        return lines

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {_native.show(size)}" for name, size, _ in self._parts())
        text = f"budget {_native.show(self['memory_bytes'])}: {parts}\n"
        text += f"swapped in {_native.show(self['swapped_in_bytes'])}, out {_native.show(self['swapped_out_bytes'])}; "
        text += f"{self['faults']} faults, {self['stalled_ns'] / 1e9:.3f} s stalled"
        return "\n".join([text, *self._rates()])

    def _repr_html_(self) -> str:
        parts: list[tuple[str, int, str]] = self._parts()
        total = max(1, sum(size for _, size, _ in parts))
        cells: list[Any] = []
        for name, size, colour in parts:
            title = html.escape(f"{name} {_native.show(size)}")
            cells.append(
                f'<div title="{title}" style="width:{100 * size / total:.1f}%;background:{colour};overflow:hidden;'
                f'white-space:nowrap;font-size:80%">{title}</div>'
            )
        lines = "".join(f"<div>{html.escape(line)}</div>" for line in repr(self).splitlines())
        return f'<div style="display:flex;width:40em;height:1.5em">{"".join(cells)}</div>{lines}'

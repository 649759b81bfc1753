# SPDX-License-Identifier: Apache-2.0
"""What an accelerated model tells of its calls: which convolutions and norms are Convoy's."""

import dataclasses


@dataclasses.dataclass
class Part:
    """One convolution or norm of one shape. kernel: what runs it, "pytorch" where it was left.
    microseconds: of each way that was measured."""

    name: str
    shape: tuple[int, ...]
    operation: str
    kernel: str
    reason: str = ""
    microseconds: dict[str, float] = dataclasses.field(default_factory=dict)
    calls: int = 0


@dataclasses.dataclass
class Report:
    """What `accelerate` took over of a model, from the calls so far. fused: how often each kind of
    fusion was made; conversions: tensors that had to be copied into channels-last memory, and
    their bytes; left_calls: whole calls of the model that were left to PyTorch, by reason;
    exchange: what carries rows between the ranks of a group, and why not peer memory;
    compiled_calls: whole calls that were made under PyTorch's compiler, whose convolutions and
    norms `taken` does not count again; not_compiled: how many were tried there and not left there,
    by module and reason (accelerate(compile=True))."""

    taken: list[Part]
    left: list[Part]
    fused: dict[str, int]
    conversions: int
    converted_bytes: int
    left_calls: dict[str, int]
    exchange: str = ""
    compiled_calls: int = 0
    not_compiled: dict[str, int] = dataclasses.field(default_factory=dict)

    def __str__(self):
        lines = [
            f"taken over: {len(self.taken)} convolutions and norms (by module and shape), "
            f"{sum(p.calls for p in self.taken)} calls",
            "fused: " + (", ".join(f"{n} × {kind}" for kind, n in sorted(self.fused.items()))
                         or "nothing yet"),
            f"conversions to channels-last: {self.conversions} "
            f"({self.converted_bytes / 1e6:.1f} MB)",
        ]
        if not self.taken and not self.left and not self.left_calls:
            lines.append("nothing has run yet: the report is of the calls so far")
        if self.compiled_calls:
            lines.append(f"under PyTorch's compiler: {self.compiled_calls} whole calls")
        for reason, count in self.not_compiled.items():
            lines.append(f"not under PyTorch's compiler: {count} whole calls: {reason}")
        if self.exchange:
            lines.append(f"rows between the ranks: {self.exchange}")
        for part in self.left:
            lines.append(f"left to PyTorch: {part.name} {part.operation} {list(part.shape)}: "
                         f"{part.reason}")
        for reason, count in self.left_calls.items():
            lines.append(f"left to PyTorch: {count} whole calls: {reason}")
        return "\n".join(lines)

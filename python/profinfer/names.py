"""What an op is called: op, tensor, layer, types. The rules are those of `profinfer report`."""

import re
from typing import NamedTuple, Optional

_NUMBER = re.compile(r"[0-9]+")
_CACHE = re.compile(r"cache_[A-Za-z0-9]+_l\Z")
LAYER, COUNTER = "{L}", "{N}"


def _opens(before):
    return not before or before[-1] in ".# "


def _closes(after):
    return not after or after[0] in " #)"


def _stand_in(before, after):
    """The placeholder for the number between two parts of a name; None if it is a part of the name."""
    if before.endswith("-") and len(before) > 1 and _closes(after):
        return LAYER
    if before.endswith("blk."):
        return LAYER if _opens(before[:-4]) and after.startswith(".") else None
    if before.endswith(("node_", "leaf_")):
        return COUNTER if _opens(before[:-5]) and _closes(after) else None
    return LAYER if _CACHE.search(before) and _closes(after) else None


def fold(name):
    """The name with placeholders for its numbers, and the layer: the first one, or None."""
    out, layer, done = [], None, 0
    for found in _NUMBER.finditer(name):
        number = int(found.group())
        stand_in = _stand_in(name[:found.start()], name[found.end():]) if number < 1 << 32 else None
        if not stand_in:
            continue
        out += [name[done:found.start()], stand_in]
        if stand_in == LAYER and layer is None:
            layer = number
        done = found.end()
    return "".join(out) + name[done:], layer


class Op(NamedTuple):
    """An op of a plan. All are None if its tensor was not described."""

    op: Optional[str]
    """`MUL_MAT`, `RMS_NORM+MUL`."""
    name: Optional[str]
    """`Qcur-3`."""
    layer: Optional[int]
    types: Optional[str]
    """`f32[2048] = q4_0[2048,2048], f32[2048]`."""


UNKNOWN = Op(None, None, None, None)


class Namer:
    """Describes ops by the definitions of a trace."""

    def __init__(self, records):
        self._records = records
        self._known, self._plans = {}, {}

    def tensor(self, id_):
        """A tensor, if it is described."""
        tensor = self._records.tensors.get(id_)
        return tensor if tensor and tensor.known else None

    def op_name(self, op):
        """The name of an op as ggml_op_desc gives it; its number if the trace has none."""
        found = self._records.one("OpDef", op)
        return found.desc or found.name if found else f"op#{op}"

    def type_name(self, type_):
        found = self._records.one("TypeDef", type_)
        return found.name if found else f"type#{type_}"

    def of(self, hit):
        """The op of a plan's hit."""
        op = self._known.get(hit)
        if op is None:
            op = self._describe(*hit)
            if op is not UNKNOWN:
                self._known[hit] = op
        return op

    def of_plan(self, plan):
        """The ops of a plan, by position."""
        if plan not in self._plans:
            # Equal ops are one object.
            self._plans[plan] = [self.of(hit) for hit in self._records.plan(plan)]
        return self._plans[plan]

    def _describe(self, first, second):
        first = self.tensor(first)
        if not first:
            return UNKNOWN
        op, result = self.op_name(first.op), first
        if second is not None:
            fused = self.tensor(second)
            op += "+" + (self.op_name(fused.op) if fused else "?")
            result = fused or first
        name, layer = self._name(result, first)
        sources = [self._shape(t) for t in map(self.tensor, filter(lambda id_: id_ is not None, first.src)) if t]
        types = self._shape(result) + (" = " + ", ".join(sources) if sources else "")
        return Op(op, name, layer, types)

    def _name(self, result, first):
        """A node without a name gets that of its weight, and a layer from any of its sources."""
        name, layer = fold(result.name)
        nameless, weight = name.startswith("node_{N}"), None
        for tensor in (result, first):
            for id_ in tensor.src:
                leaf = self._records.tensors.get(id_) if id_ is not None else None
                if not leaf or not self._is_leaf(leaf):
                    continue
                pattern, of_leaf = fold(leaf.name)
                layer = of_leaf if layer is None else layer
                if nameless and of_leaf is not None and weight is None:
                    weight = pattern
        if weight is not None:
            name = f"{name} [{weight}]"
        name = name or "(no name)"
        return (name if layer is None else name.replace(LAYER, str(layer))), layer

    def _is_leaf(self, tensor):
        """Whether no op computes it: a weight, an input, a cache."""
        op = self._records.one("OpDef", tensor.op)
        return (tensor.known and tensor.view_src is None and all(id_ is None for id_ in tensor.src)
                and op is not None and op.name == "NONE")

    def _shape(self, tensor):
        dims = list(tensor.ne)
        while len(dims) > 1 and dims[-1] == 1:
            dims.pop()
        return f"{self.type_name(tensor.type)}[{','.join(map(str, dims))}]"

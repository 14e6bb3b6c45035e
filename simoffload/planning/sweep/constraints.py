"""Conditions on points, such as ``workload.batch_size * strategy.ranks <= 256``.

A condition is an expression of Python with numbers, text, names, arithmetic, comparison, ``and``, ``or``,
``not`` and ``in``, and nothing else; simpleeval evaluates it.

Products and quotients of quantities are quantities of another kind. What is added, subtracted, compared,
sought in a list or divided for its remainder must be of one kind, whatever the values; numbers alone
(``39e9``, no name and no text in them) then count in the other's SI unit. Text is not compared
with a number, except "auto".
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from simpleeval import EvalWithCompoundTypes

from simoffload.errors import shortened
from simoffload.units import (
    parse_bytes,
    parse_flops,
    parse_flops_rate,
    parse_rate,
    parse_seconds,
    parse_watts,
)

Choice = tuple[int, ...]
"""Index of the value of each axis at a point."""
Term = Callable[[Choice], Any]
"""Function that returns the value of a name in a condition at a point."""
Find = Callable[[str], Term]
"""Function that resolves a name. Raises ConstraintError if the name is unknown."""

_LONGEST = 500
_UNREADABLE = "cannot be read; write e.g. workload.batch_size * strategy.ranks <= 256"
_Kind = tuple[int, ...]
"""Powers of byte, second, FLOP and watt in the unit of a quantity."""
_COUNT: _Kind = (0, 0, 0, 0)
_PARSERS: tuple[tuple[Callable[[str], float], str, _Kind], ...] = (
    (parse_rate, "rate", (1, -1, 0, 0)),
    (parse_bytes, "size", (1, 0, 0, 0)),
    (parse_seconds, "time", (0, 1, 0, 0)),
    (parse_flops_rate, "compute rate", (0, -1, 1, 0)),
    (parse_flops, "FLOP count", (0, 0, 1, 0)),
    (parse_watts, "power", (0, 0, 0, 1)),
)
_Action = Callable[[Any, Any], Any]
_NAMES = {_COUNT: "count", **{kind: name for _, name, kind in _PARSERS}}


class ConstraintError(ValueError):
    """A ConstraintError is raised for a condition that cannot be parsed or evaluated."""


class KindError(ConstraintError):
    """A KindError is raised for quantities of incompatible units, whatever their values."""


@dataclass(frozen=True, slots=True)
class _ConstraintQuantity:
    """A number in SI units, and the kind of quantity that it is."""

    number: float
    kind: _Kind = _COUNT
    is_bare: bool = False
    """Whether the quantity consists of plain numbers only."""

    def __bool__(self) -> bool:
        return self.number != 0


def operand(value: Any) -> Any:
    """Return a value as conditions see it: numbers, and text with a unit, become quantities."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _ConstraintQuantity(value)
    if isinstance(value, str):
        for parse, _, kind in _PARSERS:
            try:
                return _ConstraintQuantity(parse(value), kind)
            except ValueError:
                continue
    return value


def compile_constraint(text: str, find: Find, *, first: Choice | None = None) -> Callable[[Choice], bool]:
    """Turn a condition into a function of a point.

    Raises ConstraintError, as that function does; where there is a ``first`` point also for quantities there
    that do not go together.
    """
    if len(text) > _LONGEST:
        raise ConstraintError(f"longer than {_LONGEST} characters; split it into several")
    reader = _NameReader(find)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        is_negation = isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
        if not is_negation and not isinstance(tree, ast.Compare | ast.BoolOp):
            raise ConstraintError("is not a condition; compare something, e.g. workload.batch_size <= 64")
        tree = reader.visit(tree)
    except ConstraintError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConstraintError(_UNREADABLE) from None
    evaluator = EvalWithCompoundTypes(operators=_OPERATORS, functions={})

    def value(node: ast.expr, choice: Choice) -> bool:
        evaluator.names = {name: term(choice) for name, term in reader.terms.items()}
        try:
            return bool(evaluator.eval(text, previously_parsed=node))
        except ZeroDivisionError:
            raise ConstraintError("divides by zero") from None
        except OverflowError:
            raise ConstraintError("has a number that is too large") from None
        except RecursionError:
            raise ConstraintError(_UNREADABLE) from None

    for part in reader.parts if first is not None else ():
        try:
            value(part, first or ())
        except KindError:
            raise
        except ConstraintError:
            continue  # it may be decided at other points, or need not be
    return lambda choice: value(tree, choice)


class _NameReader(ast.NodeTransformer):
    """Refuses what conditions may not hold, and writes the rest as simpleeval reads it: a path as one name,
    constants as quantities."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self.terms: dict[str, Term] = {}
        """Resolved names of the condition."""
        self.parts: list[ast.expr] = []
        """Pairs of operands that are added or compared, also those that ``and`` and ``or`` may skip."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Read the parts of an operation; whatever else comes here is refused."""
        if type(getattr(node, "op", node)) in {ast.And, ast.Or, *_OPERATORS}:
            if isinstance(node, ast.BinOp):
                self.parts.append(node)
            return super().generic_visit(node)
        raise ConstraintError(f'"{shortened(ast.unparse(node))}" is not possible in a condition')

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Make text a value, and a number a bare quantity."""
        value: Any = node.value
        if isinstance(value, bool | str):
            return ast.Constant(operand(value))
        if isinstance(value, int | float):
            value = _ConstraintQuantity(value, is_bare=True)
            return ast.Constant(value)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.expr) -> ast.AST:
        """Find what a name or a path stands for."""
        name = ast.unparse(node).replace("'", '"')
        self.terms[name] = self._find(name)
        return ast.Name(name, ast.Load())

    visit_Attribute = visit_Subscript = visit_Name  # noqa: N815

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Read all sides; lists stand behind ``in`` only."""
        sides = (node.left, *node.comparators)
        for left, op, right in zip(sides, node.ops, node.comparators, strict=False):
            is_listed = isinstance(op, ast.In | ast.NotIn)
            if type(op) not in _OPERATORS or _is_list(left) or _is_list(right) != is_listed:
                wrong = shortened(ast.unparse(left if _is_list(left) else right))
                raise ConstraintError(f'"{wrong}": write "x in (1, 2)" or "x == 1"')
        read = [
            ast.Tuple([self.visit(one) for one in side.elts]) if _is_list(side) else self.visit(side)
            for side in sides
        ]
        links = zip(read, node.ops, read[1:], strict=False)
        self.parts += [ast.Compare(left, [op], [right]) for left, op, right in links]
        return ast.Compare(read[0], node.ops, read[1:])


def _is_list(node: ast.expr) -> TypeGuard[ast.Tuple | ast.List]:
    return isinstance(node, ast.Tuple | ast.List)


# ---- operations ----


def _numbers(pair: tuple[Any, Any], message: str = "") -> tuple[_ConstraintQuantity, _ConstraintQuantity]:
    for one in pair:
        if not isinstance(one, _ConstraintQuantity):
            raise ConstraintError(f'"{shortened(str(one))}" is not a number{message}')
    return pair


def _common_kind(verb: str, left: _ConstraintQuantity, right: _ConstraintQuantity) -> _Kind:
    """Return the common kind of two quantities. Raises KindError."""
    if left.kind == right.kind or (right.is_bare and right.kind == _COUNT):
        return left.kind
    if left.is_bare and left.kind == _COUNT:
        return right.kind
    kinds = f"{_called(left.kind)} and {_called(right.kind)}"
    raise KindError(f"{verb} quantities of different kinds: {kinds}")


def _called(kind: _Kind) -> str:
    """Return the name of a kind: "a size", or its unit if it has no name."""
    units = zip(("B", "s", "FLOP", "W"), kind, strict=True)
    powers = " ".join(f"{unit}^{power}" for unit, power in units if power)
    return f"a {_NAMES[kind]}" if kind in _NAMES else f"a quantity in {powers}"


def _arithmetic(action: _Action, *, verb: str = "", sign: int = 0) -> _Action:
    """Return an operation on two quantities: of one kind (``verb`` is for messages), or else one that adds
    ``sign`` times the second unit's powers to the first's."""

    def value(*pair: Any) -> _ConstraintQuantity:
        left, right = _numbers(pair)
        kind = tuple(one + sign * two for one, two in zip(left.kind, right.kind, strict=True))
        if verb:
            kind = _common_kind(verb, left, right)
        return _ConstraintQuantity(action(left.number, right.number), kind, left.is_bare and right.is_bare)

    return value


def _order(action: _Action) -> _Action:
    def value(*pair: Any) -> bool:
        left, right = _numbers(pair, ", so that it cannot be compared by size")
        _common_kind("compares", left, right)
        return bool(action(left.number, right.number))

    return value


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, _ConstraintQuantity) and isinstance(right, _ConstraintQuantity):
        _common_kind("compares", left, right)
        return left.number == right.number
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str) and one != "auto" and isinstance(other, _ConstraintQuantity):
            raise KindError(f'compares text ("{shortened(one)}") with a number')
    return bool(left == right)


def _among(value: Any, values: Sequence[Any]) -> bool:
    mixed = [isinstance(one, str) != isinstance(value, str) for one in values]  # text in a list with numbers
    found = [not other and _equal(value, one) for one, other in zip(values, mixed, strict=True)]
    return any(found)


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: _arithmetic(operator.add, verb="adds"),
    ast.Sub: _arithmetic(operator.sub, verb="subtracts"),
    ast.Mod: _arithmetic(operator.mod, verb="takes the remainder of"),
    ast.Mult: _arithmetic(operator.mul, sign=1),
    ast.Div: _arithmetic(operator.truediv, sign=-1),
    ast.FloorDiv: _arithmetic(operator.floordiv, sign=-1),
    ast.USub: lambda one: _OPERATORS[ast.Mult](_ConstraintQuantity(-1, is_bare=True), one),
    ast.Not: operator.not_,
    ast.Lt: _order(operator.lt),
    ast.LtE: _order(operator.le),
    ast.Gt: _order(operator.gt),
    ast.GtE: _order(operator.ge),
    ast.Eq: _equal,
    ast.NotEq: lambda left, right: not _equal(left, right),
    ast.In: _among,
    ast.NotIn: lambda value, values: not _among(value, values),
}
"""Implementation of each supported operation for simpleeval."""

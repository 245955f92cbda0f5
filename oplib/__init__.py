"""oplib: custom operators in plain Python on NumPy, one eager autograd engine, functional graphs.

An operator is a schema and its facets: kernels per backend, a shape rule, a gradient rule. Define
one with `custom_op` or `Library`, and it runs eagerly with gradients, on fake tensors that carry
only shapes, and in captured graphs.

The map, from the ground up; every module says in its first paragraph what it holds:

    schema/         the language of operator interfaces
    dispatch/       operators, registrations, and the plan of a call
    tensor/         Tensor, storage, views as geometries, gradient records
    library         registration: Library, define, impl; register_* in facet_registration;
                    custom_op in custom
    shapes, prims   helpers for shape rules; the operators the framework itself calls
    backends/       NumPy (and others): from Tensors to kernels on arrays
    autograd/       the engine, families of views, PyLayer
    amp             automatic mixed precision
    array_api       the array API standard over the built-in operators
    meta            tensors without data
    functionalize/  programs that write, run so that nothing below does
    graph/          the graph: text, verifier, evaluator, passes
    program/        capture, compile
    std/            the built-in operators, also the tutorial
    testing/        gradcheck and opcheck

This module is the one place that installs stages and fills tables. Built-in operators are functions
of it (``oplib.exp``), looked up in namespace ``std`` when first used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from . import autograd, meta, std
from . import checked as checked_mode
from . import functionalize as _functionalize_package  # before the function of the same name
from ._state import copy_state
from ._text import did_you_mean
from .autograd import family, general_grad, hooks
from .autograd.general_grad import grad
from .autograd.modes import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from .autograd.pylayer import PyLayer, PyLayerContext, once_differentiable
from .autograd.stage import AutogradStage
from .backends import numpy as numpy_backend
from .backends.registration import register_backend
from .backends.stage import BackendStage
from .checked import checked
from .custom import custom_op
from .dispatch import ledger
from .dispatch.explain import explain
from .dispatch.gradient_rule import derivative
from .dispatch.interpreter import DispatchMode, InterpreterStage
from .dispatch.operator import Operator
from .dispatch.packet import OperatorPacket
from .dispatch.pending import pending
from .dispatch.plan import fallthrough, install_stage
from .dispatch.registry import get_op, has_op, list_ops, ops
from .dispatch.tags import Tag
from .dtypes import Device
from .errors import (
    AliasError,
    ArgumentError,
    AutogradError,
    CaptureError,
    DataDependentError,
    DispatchError,
    FakeTensorError,
    GuardError,
    OpCheckError,
    OperatorNotFoundError,
    OperatorRemovedError,
    OplibError,
    RegistrationError,
    RegistrationWarning,
    ReturnError,
    SchemaError,
)
from .facet_registration import (
    register_autocast,
    register_autograd,
    register_fake,
    register_functional,
    register_kernel,
    register_samples,
    register_view,
    register_vjp,
)
from .library import Library, define, impl, override, scoped_library
from .meta import FakeTensorMode, get_ctx
from .schema import (
    SchemaType,
    TensorType,
    infer_schema,
    register_annotation,
    register_opaque_type,
)
from .shapes import TensorSpec, result_type
from .tensor import handles, methods, protocols
from .tensor.protocols import from_dlpack, from_numpy
from .tensor.tensor import Tensor, engine

if TYPE_CHECKING:
    from . import amp, array_api
    from ._signatures import *  # noqa: F403 (generated: the built-in operators)
    from .program.capture import capture
    from .program.compile import compile
    from .program.program import Program
    from .std.creation import (
        arange,
        empty,
        empty_like,
        eye,
        full,
        full_like,
        linspace,
        ones,
        ones_like,
        tensor,
        zeros,
        zeros_like,
    )

F = TypeVar("F", bound=Callable[..., Any])

__version__ = "0.1.0"

__all__ = [
    "AliasError",
    "ArgumentError",
    "AutogradError",
    "CaptureError",
    "DataDependentError",
    "Device",
    "DispatchError",
    "DispatchMode",
    "FakeTensorError",
    "FakeTensorMode",
    "GuardError",
    "Library",
    "OpCheckError",
    "Operator",
    "OperatorNotFoundError",
    "OperatorPacket",
    "OperatorRemovedError",
    "OplibError",
    "Program",
    "PyLayer",
    "PyLayerContext",
    "RegistrationError",
    "RegistrationWarning",
    "ReturnError",
    "SchemaError",
    "SchemaType",
    "Tag",
    "Tensor",
    "TensorSpec",
    "amp",
    "arange",
    "array_api",
    "autograd",
    "capture",
    "checked",
    "compile",
    "copy_state",
    "custom_op",
    "define",
    "derivative",
    "empty",
    "empty_like",
    "enable_grad",
    "explain",
    "eye",
    "fallthrough",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "functionalize",
    "get_ctx",
    "get_op",
    "grad",
    "has_op",
    "impl",
    "infer_schema",
    "is_grad_enabled",
    "linspace",
    "list_ops",
    "meta",
    "no_grad",
    "once_differentiable",
    "ones",
    "ones_like",
    "ops",
    "override",
    "pending",
    "register_autocast",
    "register_autograd",
    "register_backend",
    "register_fake",
    "register_functional",
    "register_kernel",
    "register_opaque_type",
    "register_samples",
    "register_view",
    "register_vjp",
    "result_type",
    "scoped_library",
    "set_grad_enabled",
    "tensor",
    "zeros",
    "zeros_like",
]


def functionalize(function: F) -> F:
    """Return a function with the same observable effect as `function`, run without writes below.

    Views and in-place operators inside become pure operators on values; each mutated argument is
    written once, after everything was computed. If the function raises, no argument has changed.

    Examples
    --------
    >>> import oplib
    >>> def f(x):
    ...     x[0].add_(1)
    ...     return x.sum()
    >>> x = oplib.zeros(3)
    >>> oplib.functionalize(f)(x), x
    (Tensor(1.), Tensor([1., 0., 0.]))
    """
    run = importlib.import_module(f"{_functionalize_package.__name__}.run")
    return run.functionalize(function)  # type: ignore[no-any-return]


_CREATION: Final = (
    *("arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones"),
    *("ones_like", "tensor", "zeros", "zeros_like"),
)
_LAZY: Final = {
    **dict.fromkeys(("Program", "capture", "compile"), "program"),
    **dict.fromkeys(_CREATION, "std.creation"),
}
"""Names that live in packages most programs never load (a third of the import time)."""


def _install() -> None:
    """Fill the tables that lower floors consult."""
    numpy_backend.install()
    checked_mode.install()
    meta.install()
    for stage in (
        BackendStage(),
        meta.MetaStage(),
        InterpreterStage(),
        AutogradStage(),
        family.ViewStage(),
    ):
        install_stage(stage)
    engine.backward_from = general_grad.backward_from
    engine.check_write = family.check_write
    engine.refresh = family.refresh
    engine.register_hook = hooks.register_hook
    engine.register_post_accumulate_grad_hook = hooks.register_post_accumulate_grad_hook
    engine.retain_grads = hooks.retain_grads
    engine.set_grad = hooks.set_grad
    engine.set_requires_grad = hooks.set_requires_grad
    methods.install_methods()
    handles.install_moves()
    protocols.install_protocols()
    methods.install_method("__array_namespace__", _array_namespace)
    register_annotation(Tensor, TensorType(), "tensor")
    ledger.DEFINITION_LISTENERS.append(_forget)


def _array_namespace(self: Tensor, /, *, api_version: str | None = None) -> ModuleType:
    """Return the module of the array API standard, loaded when it is first asked for."""
    module: ModuleType = __getattr__("array_api")
    module.check_version(api_version)
    return module


def _forget(qualname: str) -> None:
    """Look a built-in operator up again after its definition changed."""
    namespace, _, name = qualname.partition("::")
    if namespace == "std" and isinstance(globals().get(name), Operator):
        del globals()[name]


def __getattr__(name: str) -> Any:
    """Find a built-in operator, or a part that is loaded when it is first used."""
    if name in _LAZY:
        found = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        if name == "tensor":
            _lend_modules(found)
    elif name in ("amp", "array_api", "graph", "program", "testing"):
        found = importlib.import_module(f"{__name__}.{name}")
    elif not name.startswith("_") and has_op(f"std::{name}"):
        found = get_op(f"std::{name}")
    else:
        known = [*__all__, *(op for ops in std.MODULES.values() for op in ops)]
        raise AttributeError(f"module 'oplib' has no attribute {name!r}{did_you_mean(name, known)}")
    globals()[name] = found
    return found


def _lend_modules(function: Any) -> None:
    """Let the function `tensor` have the modules of the package of its name.

    ``import oplib.tensor.geometry as g`` looks them up on it.
    """
    package = sys.modules[f"{__name__}.tensor"]
    vars(function).update((n, m) for n, m in vars(package).items() if isinstance(m, ModuleType))


def __dir__() -> list[str]:
    std.load_all()
    names = {name.partition("::")[2] for name in list_ops("std")}
    return sorted({*__all__, "testing", *names})


_install()
del globals()["tensor"]  # the package, which importing its modules put in the function's place

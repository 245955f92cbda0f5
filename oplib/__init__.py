"""oplib (work in progress map)."""
from ._state import copy_state
from .dispatch.registry import get_op, has_op, list_ops, ops, pending
from .dispatch.explain import explain
from .dispatch.interpreter import DispatchMode, InterpreterStage
from .dispatch.plan import install_stage
from .dispatch import registry as _registry
from .library import *
from .library import Library, custom_op, impl
from .tensor.tensor import Tensor, tensor_from_array as from_numpy, engine
from .tensor.methods import install_methods
from .tensor.protocols import install_protocols
from .backends import numpy as _np
from .backends.stage import BackendStage
from .schema import register_annotation, TensorType
from .dtypes import Device
install_methods(); install_protocols(); _np.install()
install_stage(BackendStage()); install_stage(InterpreterStage())
register_annotation(Tensor, TensorType(), "tensor")
from . import prims
from .autograd import family, hooks, general_grad, stage
from .autograd.general_grad import grad, backward
from .autograd.modes import no_grad, enable_grad, set_grad_enabled
engine.refresh=family.refresh; engine.backward=backward
for n in ("register_hook","register_post_accumulate_grad_hook","retain_grads","set_grad","set_requires_grad"): setattr(engine,n,getattr(hooks,n))
install_stage(stage.AutogradStage()); install_stage(family.ViewStage())

from . import meta, std
from .meta import FakeTensorMode, get_ctx
meta.install(); install_stage(meta.MetaStage())
from .tensor.methods import operator_function
from .functionalize import interpreter as _fi
from .functionalize.interpreter import functionalize
_fi.install()
from .program import program as _pp, recorder as _pr
from .program.capture import capture
_pp.install(); _pr.install()
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    from .dispatch.registry import has_op
    if has_op("std::"+name): return operator_function(name)
    raise AttributeError(name)

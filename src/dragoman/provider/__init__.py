"""Providers: objects that call one model each, all with the same methods.

Box: core.

- ``model``: ``Model``: what chat, embedding and reranking models have in common
- ``contract``: ``Provider``: what a provider implements, and what callers use
- ``reply``: ``Reply``: the object that a provider returns for a call
- ``stream``: ``EventStream``: a reply as a stream of events, and the calls in flight
- ``http_model``: ``HttpModel``: the address, credentials and errors of a model behind HTTP
- ``http``: ``HttpProvider``: call a model over HTTP
- ``connect``: ``connect()``: open a provider by name or address
- ``gather``: ``gather()``: call a model for many prompts at once
"""

from ..validate import Messages
from .auth import AccessKeys, Auth, SignatureAuth, Token, TokenAuth, TokenSource, sign_v4
from .connect import SCHEMES, bind, connect, open_scheme
from .contract import Provider, ReplyProvider, plan
from .gather import Gathered, gather
from .http import HttpProvider
from .http_model import ApiKey, HttpModel
from .model import Model
from .reply import AssembledReply, EventsReply, LayerCall, Reply, WrappedReply, read_events
from .stream import EventStream

__all__ = [
    "SCHEMES",
    "AccessKeys",
    "ApiKey",
    "AssembledReply",
    "Auth",
    "EventStream",
    "EventsReply",
    "Gathered",
    "HttpModel",
    "HttpProvider",
    "LayerCall",
    "Messages",
    "Model",
    "Provider",
    "Reply",
    "ReplyProvider",
    "SignatureAuth",
    "Token",
    "TokenAuth",
    "TokenSource",
    "WrappedReply",
    "bind",
    "connect",
    "gather",
    "open_scheme",
    "plan",
    "read_events",
    "sign_v4",
]  # fmt: skip

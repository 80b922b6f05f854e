"""The one way a request ends: stop, length, abort, error, shutdown. Calling it twice is harmless."""

import logging

from jitney.errors import RequestError
from jitney.scheduler.scheduler import Scheduler
from jitney.types import FinishReason, Request, RequestStatus, TokenUpdate

logger = logging.getLogger(__name__)


class Finisher:
    """Ends requests and tells their listeners. `live` maps the ids of unfinished requests to them."""

    def __init__(self, scheduler: Scheduler, live: dict[str, Request]) -> None:
        self._scheduler = scheduler
        self._live = live

    def finish(self, request: Request, reason: FinishReason, now: float, error: Exception | None = None) -> None:
        """End a request: its seat, its blocks and its id become free, its listener gets the one final update."""
        if request.is_finished:
            return
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.error = error
        request.metrics.finished_time = now
        try:
            self._scheduler.remove(request)
        finally:  # whatever happens, the caller hears of the end
            del self._live[request.request_id]
            self._tell(TokenUpdate(request, [], reason, error))

    def refuse(self, request: Request, error: Exception) -> None:
        """End a request that never got in."""
        request.status = RequestStatus.FINISHED
        request.finish_reason = FinishReason.ERROR
        request.error = error
        self._tell(TokenUpdate(request, [], FinishReason.ERROR, error))

    def deliver(self, request: Request, token_ids: list[int], now: float) -> None:
        """Tell the listener of new tokens. A listener that raises ends its own request, nobody else's."""
        if request.is_finished:
            return
        error = self._tell(TokenUpdate(request, token_ids))
        if error is not None:
            failure = RequestError(f"request {request.request_id}: its listener raised {error!r}")
            failure.__cause__ = error
            self.finish(request, FinishReason.ERROR, now, failure)

    def _tell(self, update: TokenUpdate) -> Exception | None:
        listener = update.request.listener
        if listener is None:
            return None
        try:
            listener(update)
        except Exception as error:  # whatever a caller's code raises must not reach the other requests
            if update.finish_reason is not None:
                logger.exception("request %s: the listener raised on its end", update.request.request_id)
            return error
        return None

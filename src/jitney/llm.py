"""LLM, the offline front door: prompts in, finished outputs out. Steps the engine in the caller's thread.

with LLM() as llm:
    for output in llm.generate(["Hello", "こんにちは"], SamplingParams(max_tokens=32)):
        print(output.outputs[0].text)
"""

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitney.build import build_engine, make_config
from jitney.config import EngineConfig
from jitney.engine.interrupt import DeferredInterrupt
from jitney.engine.limits import make_requests
from jitney.engine.loop import Engine
from jitney.engine.recording import recorded
from jitney.errors import EngineDeadError, RequestError
from jitney.outputs import RequestOutput
from jitney.progress import ProgressBar
from jitney.sampling_params import SamplingParams
from jitney.text.generation import Generation, failed_output, watch_stop_strings
from jitney.text.prompts import (
    Conversation,
    EncodedPrompt,
    Prompt,
    encode_conversation,
    encode_prompt,
    list_of_conversations,
    list_of_prompts,
    spread,
)
from jitney.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

Encode = Callable[[], EncodedPrompt]


class LLM:
    """A model ready to generate.

    Safe to use from many threads: calls wait for each other. Use it as a context manager, or call `close`, to give
    its memory and its device thread back; what is forgotten is closed when it is collected or Python exits.
    """

    def __init__(
        self,
        model: "str | Path | PreTrainedModel | None" = None,
        *,
        tokenizer: Any = None,
        config: EngineConfig | None = None,
        **settings: Any,
    ) -> None:
        """
        Args:
            model: a folder, GGUF file or hub id, or a loaded transformers model (which is not changed).
                None: the embedded SmolLM2-135M-Instruct.
            tokenizer: of a loaded model: a transformers tokenizer or a `Tokenizer`. None: token ids only. Models named
                by a path bring their own.
            config: all settings in one; `settings` are applied on top.
            settings: fields of EngineConfig: dtype, max_model_len, max_num_seqs, ...

        Raises:
            ConfigError: a setting is unknown, wrong, or does not fit the model or the machine.
            ModelLoadError: the model cannot be found, read or served.
        """
        self._serve(*build_engine(model, tokenizer, make_config(config, settings)))

    @classmethod
    def from_engine(cls, engine: Engine, tokenizer: Tokenizer | None = None) -> "LLM":
        """An LLM over an engine made elsewhere (a simulated device, a runner of your own), which it then owns."""
        llm = cls.__new__(cls)
        llm._serve(engine, tokenizer)
        return llm

    def _serve(self, engine: Engine, tokenizer: Tokenizer | None) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._num_prompts = 0
        self._close_engine = weakref.finalize(self, engine.close)

    @property
    def engine(self) -> Engine:
        """The engine, for its records and limits. Not to be stepped by others."""
        return self._engine

    @property
    def config(self) -> EngineConfig:
        return self._engine.config

    def get_tokenizer(self) -> Tokenizer | None:
        """None if the model was given without one."""
        return self._tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] = 0,
        cache_salt: str = "",
        timeline: str | Path | None = None,
    ) -> list[RequestOutput]:
        """Generate for all prompts; returns when the last one has ended.

        Args:
            prompts: strings, {"prompt": string} or {"prompt_token_ids": [...]}; one or a list.
            sampling_params: for all prompts, or one for each. None: `SamplingParams()`, which samples at temperature 1
                until the model stops.
            use_tqdm: show a progress bar on stderr.
            priority: for all prompts or one for each; lower runs first under scheduling_policy="priority".
            cache_salt: prompts with different salts never share cached blocks.
            timeline: file to write a trace of the run to (for ui.perfetto.dev), also when the run is interrupted.

        Returns:
            One output for each prompt, in their order. A prompt or request at fault costs itself only: its output has
            finish_reason "error" and `.error`.

        Raises:
            RequestError: the arguments do not go together (lists of different lengths, ...).
            EngineDeadError: the engine has stopped or was closed.
            KeyboardInterrupt: Ctrl-C; the requests are aborted and the LLM remains usable.
        """
        encoders = [partial(encode_prompt, prompt, self._tokenizer) for prompt in list_of_prompts(prompts)]
        return self._run(encoders, sampling_params, use_tqdm, priority, cache_salt, timeline)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] = 0,
        cache_salt: str = "",
        timeline: str | Path | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """`generate` for conversations, through the model's chat template.

        Args:
            messages: dicts with `role` and `content`; one conversation or a list of them.
            add_generation_prompt: end the prompt with the opening of the assistant's turn.
            chat_template_kwargs: passed on to the template.
        """
        encoders = [
            partial(encode_conversation, each, self._tokenizer, add_generation_prompt, chat_template_kwargs or {})
            for each in list_of_conversations(messages)
        ]
        return self._run(encoders, sampling_params, use_tqdm, priority, cache_salt, timeline)

    def close(self) -> None:
        """Give memory and threads back; every later call raises EngineDeadError. Harmless when called twice."""
        with self._lock:
            self._close_engine()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self,
        encoders: Sequence[Encode],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        priority: int | Sequence[int],
        cache_salt: str,
        timeline: str | Path | None,
    ) -> list[RequestOutput]:
        params = SamplingParams() if sampling_params is None else sampling_params
        each_params = spread("sampling_params", params, len(encoders))
        each_priority = spread("priority", priority, len(encoders))
        with self._lock, recorded(self._engine, timeline):
            self._engine.check_alive()
            jobs = [
                self._prepare(encode, params, priority, cache_salt)
                for encode, params, priority in zip(encoders, each_params, each_priority, strict=True)
            ]
            generations = [job for job in jobs if isinstance(job, Generation)]
            self._drive(generations, use_tqdm)
            return _outputs(jobs)

    def _prepare(
        self, encode: Encode, params: SamplingParams, priority: int, cache_salt: str
    ) -> Generation | RequestOutput:
        """The requests of a prompt, or the output that says why there are none."""
        request_id = str(self._num_prompts)
        self._num_prompts += 1
        prompt: EncodedPrompt | None = None
        try:
            prompt = encode()
            requests = make_requests(
                request_id,
                prompt.token_ids,
                params,
                self._engine.limits,
                engine_seed=self.config.seed,
                priority=priority,
                cache_salt=cache_salt,
            )
            watch_stop_strings(requests, self._tokenizer, self._engine.finish)
        except RequestError as error:
            n = params.n if isinstance(params, SamplingParams) else 1
            return failed_output(request_id, prompt, n, error)
        return Generation(request_id, prompt, requests, self._tokenizer)

    def _drive(self, generations: Sequence[Generation], use_tqdm: bool) -> None:
        """Step until the engine is idle. On any error or interrupt the requests end and the device comes to rest."""
        engine = self._engine
        num_requests = sum(len(generation.requests) for generation in generations)
        with DeferredInterrupt() as interrupt, ProgressBar(engine, num_requests, use_tqdm) as bar:
            try:
                for generation in generations:
                    engine.add_or_refuse(*generation.requests)
                while engine.has_work:
                    engine.step_or_wait()
                    bar.step()
                    interrupt.raise_pending()
            except EngineDeadError:
                raise
            except BaseException:
                engine.abort_all()
                engine.run_until_idle()
                raise


def _outputs(jobs: Sequence[Generation | RequestOutput]) -> list[RequestOutput]:
    outputs = []
    for job in jobs:
        if isinstance(job, Generation):
            job.push_ends()
            job = job.output()
        outputs.append(job)
    errors = [output.error for output in outputs if output.error is not None]
    if errors:
        logger.warning("%d of %d prompts failed; the first: %s", len(errors), len(outputs), errors[0])
    return outputs

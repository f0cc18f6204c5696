"""Chat templates: sandboxed Jinja, set up as models' templates expect.

Rendering runs in a process of its own (see `renderer`), because no in-process sandbox can stop a template that loops or
grows without end.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from quire.bounds import RESERVED_TEMPLATE_VARIABLES
from quire.reasoning import EFFORT
from tokenizer_svc.adaptations import Conversation, attempts
from tokenizer_svc.content_format import ContentUse, content_use, with_parts, with_plain_text, with_text_content
from tokenizer_svc.developer_role import knows_developers, without_developers
from tokenizer_svc.rendered import Rendered

# Appended to the content of a message to be continued, to find its end again: searching for the content itself could
# match what the template writes after it. The trailing space shows whether the template strips a content's trailing
# whitespace.
_END_MARK = "\ue000the message ends here\ue001 "


class TemplateRejection(Exception):
    """The template cannot render this conversation; the message is for the caller."""

    def __init__(self, message: str, parameter: str = "") -> None:
        """
        Args:
            parameter: the request's field that is at fault, unless it is what is being rendered.
        """
        super().__init__(message)
        self.parameter = parameter


class _TooLong(TemplateRejection):
    """The rendered text is too long."""


class _GenerationExtension(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here it just renders its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own interface)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRejection(f"The model's chat template rejects the conversation: {message}")


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def make_environment() -> jinja2.Environment:
    """Creates a Jinja environment configured like Transformers' for chat templates."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationExtension, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@dataclass(frozen=True)
class _Compiled:
    """A template and what it expects of messages."""

    template: jinja2.Template
    content: ContentUse
    knows_developers: bool


class ChatTemplates:
    """The model's chat templates, and the rendering of conversations with them."""

    def __init__(
        self, templates: Mapping[str, str], special_tokens: Mapping[str, str], max_chars: int, content_format: str
    ) -> None:
        """
        Args:
            templates: name → template; "default", and "tool_use" if the model has one for tools.
            special_tokens: variables such as bos_token.
            max_chars: maximum length of a rendered text.
            content_format: see TokenizerOptions.chat_template_content_format.
        """
        self._environment = make_environment()
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._max_chars = max_chars
        self._content_format = content_format
        self._compiled: dict[str, _Compiled] = {}  # by name

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
        template: str | None,
        default_effort: str = "",
        placeholders: Mapping[str, str] = {},
        interleaves: bool = False,
        separator: str = "\n",
    ) -> Rendered:
        """Renders a conversation to text.

        Args:
            template: used in place of the model's; None means the model's.
            default_effort: how much to think if the variables do not say; empty leaves it to the template.
            placeholders, interleaves, separator: see `with_text_content`.

        Raises:
            TemplateRejection: it cannot be rendered.
        """
        for name in RESERVED_TEMPLATE_VARIABLES:
            if name in variables:
                raise TemplateRejection(
                    f"chat_template_kwargs must not set {name!r}; it has its own field.", "chat_template_kwargs"
                )
        as_text = partial(
            with_text_content, placeholders=placeholders, interleaves=interleaves, separator=separator
        )  # fmt: skip
        try:
            chosen = self._compile(template) if template else self._own(bool(tools))
            given = Conversation(_marked(messages) if continue_final_message else messages, tools, default_effort)
            text = self._first_that_fits(
                attempts(given, null_first=chosen.content.takes_null),
                lambda form: self._join(
                    chosen.template.generate(
                        messages=self._as_taken(form.messages, chosen, as_text),
                        tools=form.tools,
                        add_generation_prompt=add_generation_prompt,
                        **{**self._special_tokens, "documents": None, **_effort(form.effort), **variables},
                    )
                ),
            )
        except jinja2.TemplateSyntaxError as error:
            raise TemplateRejection(
                f"The chat template is not valid Jinja (line {error.lineno}): {error}",
                "chat_template" if template else "",
            ) from error
        except TemplateRejection:
            raise
        except MemoryError:
            raise TemplateRejection("The chat template needs too much memory for this conversation.") from None
        except RecursionError:
            raise TemplateRejection("The chat template nests too deeply for this conversation.") from None
        except (
            Exception
        ) as error:  # a template's expressions may raise anything; the conversation does not have the form it needs
            raise TemplateRejection(
                f"The chat template cannot render this conversation: {type(error).__name__}: {error}"
            ) from error
        return Rendered(_without_end(text, messages[-1]) if continue_final_message else text)

    @staticmethod
    def _first_that_fits(forms: Iterable[Conversation], write: Callable[[Conversation], str]) -> str:
        """Writes the first form of a conversation that the template can render; raises what the last one raises."""
        problem: Exception | None = None
        for form in forms:
            try:
                return write(form)
            except (MemoryError, RecursionError, _TooLong):
                raise
            except Exception as error:  # see `render`
                problem = error
        assert problem is not None
        raise problem

    def _as_taken(
        self, messages: list[dict[str, Any]], chosen: _Compiled,
        as_text: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    ) -> list[dict[str, Any]]:  # fmt: skip
        """The messages with the roles and in the form that a template takes.

        Args:
            as_text: gives the messages strings as contents.
        """
        known = messages if chosen.knows_developers else without_developers(messages)
        if self._content_format == "auto" and chosen.content.takes_parts and chosen.content.takes_text:
            return with_plain_text(known)
        if self._content_format == "openai" or (chosen.content.takes_parts and self._content_format == "auto"):
            return with_parts(known)
        return as_text(known)

    def _compile(self, template: str) -> _Compiled:
        return _Compiled(
            self._environment.from_string(template),
            content_use(template, self._environment),
            knows_developers(template),
        )

    def _own(self, with_tools: bool) -> _Compiled:
        name = "tool_use" if with_tools and "tool_use" in self._templates else "default"
        if name not in self._compiled:
            self._compiled[name] = self._compile(self._templates[name])
        return self._compiled[name]

    def _join(self, pieces: Any) -> str:
        texts, length = [], 0
        for piece in pieces:
            length += len(piece)
            if length > self._max_chars:
                raise too_long(self._max_chars)
            texts.append(piece)
        return "".join(texts)


def _effort(effort: str) -> dict[str, str]:
    return {EFFORT: effort} if effort else {}


def too_long(max_chars: int) -> TemplateRejection:
    """The rejection of a rendered text that exceeds `max_chars`."""
    return _TooLong(f"The rendered conversation has more than {max_chars} characters (--max-prompt-chars).")


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the end mark appended to the final one's content."""
    *others, final = messages
    content = final.get("content")
    if isinstance(content, list) and content and "text" in content[-1]:
        marked: Any = [*content[:-1], {**content[-1], "text": content[-1]["text"] + _END_MARK}]
    elif isinstance(content, str):
        marked = content + _END_MARK
    else:
        raise _nothing_to_continue()
    return [*others, {**final, "content": marked}]


def _without_end(text: str, final_message: Mapping[str, Any]) -> str:
    """The text up to the end of the final message's content, so that the model continues it."""
    content = final_message["content"]
    said = content if isinstance(content, str) else content[-1]["text"]
    shown, mark, _ = text.rpartition(_END_MARK.rstrip())
    if not mark or said.strip() not in shown:
        raise _nothing_to_continue()
    return shown if text.startswith(_END_MARK, len(shown)) else shown.rstrip()


def _nothing_to_continue() -> TemplateRejection:
    return TemplateRejection("continue_final_message needs a final message whose content the template shows.")

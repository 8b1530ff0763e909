"""Makes the constraint of an answer: its grammar, that of tool calls, and the bound on reasoning.

Grammars can be compiled on another thread than prompts are built on.
"""

from typing import TYPE_CHECKING

from protocol.bounds import MAX_NAME
from protocol.commands import Submit, client_of
from protocol.errors import ErrorCode
from protocol.request import ChatInput, Grammar
from workers.engine.request import Constraint, ConstraintFailed
from workers.grammar.refusal import GrammarRefused
from workers.grammar.tool_calls.answer_grammar import FIELD as TOOLS_FIELD
from workers.grammar.tool_calls.answer_grammar import ToolCallGrammars
from workers.grammar.tool_calls.tool_grammar import ToolGrammarError, parameters_path, parameters_schema, tool_problem
from workers.output_formats.reasoning_gate import ReasoningGate
from workers.process.prompts.refusal import PromptRefused, unsupported

if TYPE_CHECKING:
    from workers.grammar.compiler import GrammarCompiler


class AnswerConstraints:
    """Makes grammars and constraints for one model. What it keeps is the cache of compiled grammars."""

    def __init__(self, grammars: "GrammarCompiler | None", call_grammars: ToolCallGrammars) -> None:
        """Without `grammars`, requests that have a grammar are refused."""
        self._grammars = grammars
        self._call_grammars = call_grammars

    def grammar(self, submit: Submit, gate: ReasoningGate | None) -> Grammar | None:
        """Return the grammar of the answer: the request's own, that of tool calls that it must make, or both. Raises
        `PromptRefused`."""
        if not isinstance(submit.input, ChatInput):
            return submit.grammar
        try:
            return self._call_grammars.of(submit.input, submit.grammar, reasons=gate is not None)
        except ToolGrammarError as error:
            raise unsupported(f"`{TOOLS_FIELD}{error.path}`: {error}", _field(error.path)) from error

    def compiled(self, grammar: Grammar | None) -> bool:
        """The grammar is compiled already, or there is none."""
        return grammar is None or (self._grammars is not None and self._grammars.cached(grammar))

    def constraint(self, grammar: Grammar | None, gate: ReasoningGate | None, submit: Submit) -> Constraint | None:
        """Compile a grammar, which begins after the reasoning if there is a gate, and pass the constraint the resumed
        tokens. Raises `PromptRefused`."""
        constraint: Constraint | None = None if grammar is None else self._matcher(grammar, submit)
        # With channels, the grammar of tool calls has a rule for the reasoning.
        whole = grammar is not None and grammar.field == TOOLS_FIELD and gate is not None and gate.plan.has_channels
        if gate is not None and (gate.limit is not None or (constraint is not None and not whole)):
            constraint = gate.constraint(constraint, with_reasoning=whole)
        if constraint is None:
            return None
        try:
            for token in submit.resume:
                constraint.accept(token)
        except ConstraintFailed as error:
            raise PromptRefused(ErrorCode.INVALID, str(error), error.field) from error
        return constraint

    def _matcher(self, grammar: Grammar, submit: Submit) -> Constraint:
        if self._grammars is None:
            problem = "the model has no tokenizer, which grammars need"
            raise PromptRefused(ErrorCode.UNSUPPORTED, f"{problem}: leave `{grammar.field}` out", grammar.field)
        # A sequence that another worker began has a grammar that was compiled before.
        client = None if submit.resume else client_of(submit.tenant)
        try:
            return self._grammars.matcher(grammar, ignore_eos=submit.limits.ignore_eos, client=client)
        except GrammarRefused as error:
            if error.retry_after_s:
                text = f"`{grammar.field}`: {error}"
                raise PromptRefused(ErrorCode.OVERLOADED, text, grammar.field, error.retry_after_s) from error
            code = ErrorCode.UNSUPPORTED if error.unsupported else ErrorCode.INVALID
            if grammar.field == TOOLS_FIELD and isinstance(submit.input, ChatInput):
                raise self._tools_refused(self._grammars, grammar, submit.input, code, error) from error
            path = ".".join(filter(None, (grammar.field, error.path)))
            raise PromptRefused(code, f"`{path}`: {error}", grammar.field) from error

    def _tools_refused(
        self, grammars: "GrammarCompiler", grammar: Grammar, source: ChatInput, code: ErrorCode, error: GrammarRefused
    ) -> PromptRefused:
        """Return the refusal of tools, which names the tool and the part of its schema."""
        problem = tool_problem(grammar.source, str(error))
        path = ""
        if problem.tool is not None:
            schema = parameters_schema(source.tools_json, problem.tool)
            path = parameters_path(problem.tool, _problem_path(grammars, schema))
        return PromptRefused(code, f"`{TOOLS_FIELD}{path}`: {problem.text}", _field(path))


def _problem_path(grammars: "GrammarCompiler", schema: str) -> tuple[str, ...]:
    """Return where the problem of a tool's schema is; empty if it has none by itself."""
    try:
        grammars.matcher(Grammar("json_schema", schema, TOOLS_FIELD))
    except GrammarRefused as error:
        return (error.path,) if error.path else ()
    return ()


def _field(path: str) -> str:
    """Return the field of a part of the tools, as far as its name is not too long."""
    field = TOOLS_FIELD + path
    return field if len(field) <= MAX_NAME else TOOLS_FIELD + path.partition(".")[0]

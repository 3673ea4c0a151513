#include "cortado/serve/grammar.h"

namespace cortado {

std::unique_ptr<GrammarCompiler> make_grammar_compiler(const Tokenizer&) { return nullptr; }

bool Grammars::available() { return false; }

}  // namespace cortado

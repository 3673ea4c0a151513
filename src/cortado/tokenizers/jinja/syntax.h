// The syntax tree of a template.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "cortado/tokenizers/jinja/value.h"

namespace cortado::jinja {

struct Node;
using Nodes = std::vector<const Node*>;

// A statement or an expression. What a kind uses of the fields stands beside it.
struct Node {
  enum class Kind {
    // Statements
    kData,    // value
    kPrint,   // parts[0]
    kIf,      // parts[0]; body, otherwise
    kFor,     // parts: target, sequence, condition (null: none); body, otherwise
    kSet,     // parts: target, value (null: the body is the value, through the filters in `parts` after it)
    kMacro,   // name; parameters; body
    kCall,    // parts[0]: the call; parameters of the caller; body
    kFilter,  // parts[0]: filters of the body (kFiltered, innermost with a null operand)
    kWith,    // named: variables; body
    kScope,   // body, whose variables end with it
    kBreak,
    kContinue,
    // Expressions
    kConstant,   // value
    kName,       // name
    kList,       // parts
    kTuple,      // parts
    kDict,       // parts: key, value, key, value, ...
    kUnary,      // name: the sign or "not"; parts[0]
    kBinary,     // name: the sign, "and" or "or"; parts
    kCompare,    // names of signs in `words`; parts: one more operand than signs
    kChoice,     // parts: condition, value, otherwise (null: undefined)
    kAttribute,  // name; parts[0]
    kItem,       // parts: object, key
    kSlice,      // parts: object, begin, end, step (each may be null)
    kInvoke,     // parts: the function, then positional arguments; named
    kFiltered,   // name; parts: the operand, then arguments; named
    kTest,       // name; parts: the operand, then arguments; named
    kSpread,     // parts[0]: * in a call
  };

  Kind kind;
  int line = 0;
  std::string name = {};
  Value value = None{};
  std::vector<std::string> words = {};
  Nodes parts = {};
  std::vector<std::pair<std::string, const Node*>> named =
      {};  // arguments, or parameters with their defaults (or null)
  Nodes body = {}, otherwise = {};
};

// Owns all nodes, so that neither copies nor destructors recurse.
struct Program {
  std::deque<Node> nodes;
  Nodes body;
};

// Throws Error with the line.
Program parse(const std::string& source);

}  // namespace cortado::jinja

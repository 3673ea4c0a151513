// A regular expression as a nondeterministic automaton, from which Pattern is built.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/serve/pattern.h"

namespace cortado {

// The automaton: numbered states with edges between them. The expression matches a text if its characters lead from
// begin() to end().
class Fragments {
 public:
  // kFree edges need no character; kBegin and kEnd edges can only be passed at the beginning and the end of the text.
  enum Kind { kCharacters, kFree, kBegin, kEnd };
  struct Edge {
    Kind kind = kFree;
    Characters characters = {};
    int64_t to = 0;
  };

  explicit Fragments(const std::string& expression);  // throws InputError

  int64_t begin() const { return 0; }
  int64_t end() const { return end_; }
  const std::vector<Edge>& edges(int64_t state) const { return edges_[static_cast<size_t>(state)]; }

 private:
  struct Node;
  friend class ExpressionReader;
  int64_t add();
  int64_t build(const Node& part, int64_t from);  // returns the end state
  int64_t build_repeated(const Node& part, int64_t from);

  std::vector<std::vector<Edge>> edges_;
  int64_t end_ = 0;
};

}  // namespace cortado

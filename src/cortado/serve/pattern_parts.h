// A regular expression as a net of states, several of which may be true at once: what Pattern is made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/serve/pattern.h"

namespace cortado {

class Fragments {
 public:
  // Free ones are passed without a character, those of the beginning and the end there alone.
  enum Kind { kCharacters, kFree, kBegin, kEnd };
  struct Edge {
    Kind kind = kFree;
    Characters characters = {};
    int64_t to = 0;
  };

  explicit Fragments(const std::string& expression);  // InputError

  int64_t begin() const { return 0; }
  int64_t end() const { return end_; }
  const std::vector<Edge>& edges(int64_t state) const { return edges_[static_cast<size_t>(state)]; }

 private:
  struct Part;
  friend class ExpressionReader;
  int64_t add();
  int64_t build(const Part& part, int64_t from);  // returns where it ends
  int64_t build_repeated(const Part& part, int64_t from);

  std::vector<std::vector<Edge>> edges_;
  int64_t end_ = 0;
};

}  // namespace cortado

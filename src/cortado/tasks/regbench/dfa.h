// Random deterministic finite automata and the strings that they generate.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cortado/tasks/draws.h"

namespace cortado {

inline constexpr int64_t kLetters = 18;    // tokens 1 .. 18: a .. r
inline constexpr int64_t kPad = 0;         // "."; the public data use it as padding
inline constexpr int64_t kSeparator = 19;  // "|"
inline constexpr int64_t kSymbols = 20;

// All states accept; state 0 is the start. A letter without a transition is not allowed in a state.
struct Dfa {
  std::vector<std::array<int64_t, kSymbols>> next;  // by state and letter; -1: not allowed

  int64_t states() const { return int64_t(next.size()); }
  // The state after one more letter; -1 if it is not allowed. From -1, every letter leads to -1.
  int64_t step(int64_t state, int64_t letter) const { return state < 0 ? -1 : next[size_t(state)][size_t(letter)]; }
  std::vector<int64_t> letters(int64_t state) const;  // the allowed letters in ascending order
};

struct DfaSizes {
  int64_t least_states = 4, most_states = 12;
  int64_t least_letters = 4;  // of the automaton's alphabet; at most all kLetters
  int64_t most_edges = 3;     // transitions out of a state, each to a different other state
};

// Draws an automaton. It may have equivalent or unreachable states.
Dfa draw_dfa(Draws& draws, const DfaSizes& sizes);
// The smallest automaton of the same language. States are numbered in the order of a breadth-first search.
Dfa minimal(const Dfa& dfa);
// A walk of `length` letters from the start; each allowed letter has the same probability.
std::vector<int64_t> walk(const Dfa& dfa, Draws& draws, int64_t length);

}  // namespace cortado

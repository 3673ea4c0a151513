// Random deterministic finite automata and what they write.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cortado/tasks/draws.h"

namespace cortado {

inline constexpr int64_t kLetters = 18;    // tokens 1 .. 18: a .. r
inline constexpr int64_t kPad = 0;         // "."; the public data pad with it
inline constexpr int64_t kSeparator = 19;  // "|"
inline constexpr int64_t kSymbols = 20;

// All states accept; the first one starts. A letter that leads nowhere is not allowed there.
struct Dfa {
  std::vector<std::array<int64_t, kSymbols>> next;  // -1: not allowed

  int64_t states() const { return int64_t(next.size()); }
  // After another letter; -1, which no letter leaves, where it is not allowed.
  int64_t step(int64_t state, int64_t letter) const { return state < 0 ? -1 : next[size_t(state)][size_t(letter)]; }
  std::vector<int64_t> letters(int64_t state) const;  // allowed ones, in order
};

struct DfaSizes {
  int64_t least_states = 4, most_states = 12;
  int64_t least_letters = 4;  // of the automaton's alphabet, at most all
  int64_t most_edges = 3;     // out of a state, to different other states
};

// As drawn: states that equal each other, or that nothing reaches, are still there.
Dfa draw_dfa(Draws& draws, const DfaSizes& sizes);
// The smallest automaton of the same language, and states in the order in which a walk meets them.
Dfa minimal(const Dfa& dfa);
// A walk from the first state of `length` letters, each allowed one with the same probability.
std::vector<int64_t> walk(const Dfa& dfa, Draws& draws, int64_t length);

}  // namespace cortado

#include "cortado/tasks/regbench/dfa.h"

#include <map>

namespace cortado {

std::vector<int64_t> Dfa::letters(int64_t state) const {
  std::vector<int64_t> allowed;
  for (int64_t letter = 1; letter <= kLetters; ++letter) {
    if (step(state, letter) >= 0) allowed.push_back(letter);
  }
  return allowed;
}

Dfa draw_dfa(Draws& draws, const DfaSizes& sizes) {
  Dfa dfa;
  const int64_t states = draws.between(sizes.least_states, sizes.most_states);
  const auto alphabet = draws.distinct(draws.between(sizes.least_letters, kLetters), kLetters);
  dfa.next.assign(size_t(states), {});
  for (int64_t state = 0; state < states; ++state) {
    auto& edges = dfa.next[size_t(state)];
    edges.fill(-1);
    const int64_t degree = draws.between(1, sizes.most_edges);
    const auto letters = draws.distinct(degree, int64_t(alphabet.size())), targets = draws.distinct(degree, states - 1);
    for (int64_t i = 0; i < degree; ++i) {
      const int64_t target = targets[size_t(i)];
      edges[size_t(1 + alphabet[size_t(letters[size_t(i)])])] = target + (target >= state);  // never to itself
    }
  }
  return dfa;
}

// Moore's refinement: starts with one class of all states, and splits classes until their transitions agree.
Dfa minimal(const Dfa& dfa) {
  std::vector<int64_t> of(size_t(dfa.states()), 0);
  for (int64_t classes = 0;;) {
    std::map<std::array<int64_t, kSymbols + 1>, int64_t> seen;
    std::vector<int64_t> finer;
    for (int64_t state = 0; state < dfa.states(); ++state) {
      std::array<int64_t, kSymbols + 1> signature{of[size_t(state)]};
      for (int64_t letter = 0; letter < kSymbols; ++letter) {
        const int64_t to = dfa.step(state, letter);
        signature[size_t(letter + 1)] = to < 0 ? -1 : of[size_t(to)];
      }
      finer.push_back(seen.emplace(signature, int64_t(seen.size())).first->second);
    }
    of = finer;
    if (int64_t(seen.size()) == classes) break;
    classes = int64_t(seen.size());
  }
  Dfa small;
  std::map<int64_t, int64_t> number{{of[0], 0}};
  std::vector<int64_t> met{0};  // one state of each class
  for (size_t i = 0; i < met.size(); ++i) {
    small.next.emplace_back().fill(-1);
    for (const int64_t letter : dfa.letters(met[i])) {
      const int64_t to = dfa.step(met[i], letter);
      const auto [found, fresh] = number.emplace(of[size_t(to)], int64_t(number.size()));
      if (fresh) met.push_back(to);
      small.next[i][size_t(letter)] = found->second;
    }
  }
  return small;
}

std::vector<int64_t> walk(const Dfa& dfa, Draws& draws, int64_t length) {
  std::vector<int64_t> string;
  for (int64_t state = 0; int64_t(string.size()) < length;) {
    const auto allowed = dfa.letters(state);
    string.push_back(allowed[size_t(draws.below(int64_t(allowed.size())))]);
    state = dfa.step(state, string.back());
  }
  return string;
}

}  // namespace cortado

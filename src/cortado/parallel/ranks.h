// The processes that work on one thing together: torchrun's, whose process group `python -m cortado` has made. One
// process without a group is the special case in which everything here returns at once.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cortado/primitives/types.h"

namespace cortado {

struct RanksGroup;

// Ends a process that has nothing to say: another one tells what went wrong.
class EndedElsewhere : public std::runtime_error {
 public:
  explicit EndedElsewhere(int exit_code) : std::runtime_error("another process has ended"), code(exit_code) {}
  const int code;
};

// All calls but rank() and size() are collective: every process makes them, in the same order. One that another never
// answers ends after the group's timeout, or at once when the other is gone: Failure in process 0, else EndedElsewhere.
class Ranks {
 public:
  // The group that the environment names (CORTADO_PROCESS_GROUP), or this process alone. InputError: no such group.
  static const Ranks& world();
  Ranks() = default;  // this process alone

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  bool first() const { return rank_ == 0; }
  bool several() const { return size_ > 1; }
  // Whether there is a group at all: one of a single process makes the same calls, so that one GPU tests them.
  bool grouped() const { return group_ != nullptr; }

  // x becomes the sum of all; the same bits everywhere.
  void sum(const Tensor& x) const;
  // x becomes that of process `from`.
  void broadcast(const Tensor& x, int64_t from = 0) const;
  // Everyone's text, by rank.
  std::vector<std::string> gather(const std::string& text) const;

  // Runs `work` in every process. Where it throws in one, it ends in all: process 0 throws what it threw itself, or what
  // the first of the others did; those throw EndedElsewhere.
  void agree(const std::function<void()>& work) const;
  // The same of work that process 0 alone does, as writing.
  void by_first(const std::function<void()>& work) const;
  // `value` must be process 0's in every process; `what` for the message.
  void require_same(const std::string& what, const std::string& value) const;
  // InputError, of process 0, where there are several: `what` is one process's work.
  void require_one(const std::string& what) const;
  // Process 0 says `message`, the others nothing.
  [[noreturn]] void fail(const std::string& message) const;

  // Work with collective calls in it, whose errors become what is said above; others pass.
  void wait(const std::function<void()>& work) const;

  // Of torchrun: how often it has started these processes anew after one of them was gone.
  static int64_t restarts();

  const RanksGroup& group() const { return *group_; }

 private:
  explicit Ranks(std::shared_ptr<RanksGroup> group);

  int64_t rank_ = 0, size_ = 1;
  std::shared_ptr<RanksGroup> group_;  // parallel/group.h
};

}  // namespace cortado

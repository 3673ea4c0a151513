// The processes that work on one job: those of torchrun, whose process group `python -m cortado` has created. A single
// process without a group is a special case, in which every call returns at once.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cortado/primitives/types.h"

namespace cortado {

struct RanksGroup;

// Ends a process without a message, because another process reports the error.
class EndedElsewhere : public std::runtime_error {
 public:
  explicit EndedElsewhere(int exit_code) : std::runtime_error("another process has ended"), code(exit_code) {}
  const int code;
};

// All calls but rank() and size() are collective: every process makes them in the same order. A call that another
// process never answers ends after the group's timeout, or at once if the other process is gone: with Failure in
// process 0 and EndedElsewhere in the others.
class Ranks {
 public:
  // Returns the group that the environment names (CORTADO_PROCESS_GROUP), or this process alone. Throws InputError if
  // there is no such group.
  static const Ranks& world();
  Ranks() = default;  // this process alone

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  bool first() const { return rank_ == 0; }
  bool several() const { return size_ > 1; }
  // Whether there is a process group. A group of one process makes the same calls as a larger one, so one GPU can test
  // them.
  bool grouped() const { return group_ != nullptr; }

  // Replaces x by the sum over all processes, bit for bit the same in each.
  void sum(const Tensor& x) const;
  // Replaces x by the one of process `from`.
  void broadcast(const Tensor& x, int64_t from = 0) const;
  // Returns every process's text, ordered by rank.
  std::vector<std::string> gather(const std::string& text) const;

  // Runs `work` in every process. If it throws in one process, it throws in all: process 0 throws its own error or else
  // the first of the others' errors, and the others throw EndedElsewhere.
  void agree(const std::function<void()>& work) const;
  // Runs `work`, such as writing files, in process 0 only, with the error handling of agree().
  void by_first(const std::function<void()>& work) const;
  // Fails unless every process has process 0's `value`; `what` names it in the message.
  void require_same(const std::string& what, const std::string& value) const;
  // Throws InputError, in process 0, if there are several processes; `what` names the work that runs in one process
  // only.
  void require_one(const std::string& what) const;
  // Throws: process 0 reports `message`, the others end without a message.
  [[noreturn]] void fail(const std::string& message) const;

  // Runs work that makes collective calls itself and translates their errors as described above; other errors pass
  // through.
  void wait(const std::function<void()>& work) const;

  // How often torchrun has restarted these processes after one of them was lost.
  static int64_t restarts();

  const RanksGroup& group() const { return *group_; }

 private:
  explicit Ranks(std::shared_ptr<RanksGroup> group);

  int64_t rank_ = 0, size_ = 1;
  std::shared_ptr<RanksGroup> group_;  // parallel/group.h
};

}  // namespace cortado

#include "cortado/parallel/ranks.h"

#include <cstdlib>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "cortado/base/error.h"
#include "cortado/formats/safetensors.h"
#include "cortado/parallel/group.h"

namespace cortado {
namespace {

constexpr int kFailed = 1, kBadInput = 2;

// Runs `work` and returns "" on success, otherwise a letter for the kind of error followed by its message.
std::string report_of(const std::function<void()>& work, std::exception_ptr& thrown) {
  try {
    work();
    return "";
  } catch (const InputError& error) {
    thrown = std::current_exception();
    return concat("I", error.what());
  } catch (const EndedElsewhere&) {
    throw;
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    return concat("F", error.what());
  }
}

}  // namespace

Ranks::Ranks(std::shared_ptr<RanksGroup> group)
    : rank_(group->handle->getRank()), size_(group->handle->getSize()), group_(std::move(group)) {}

const Ranks& Ranks::world() {
  static const Ranks ranks = [] {
    const char* name = std::getenv("CORTADO_PROCESS_GROUP");
    if (!name) return Ranks();
    try {
      return Ranks(std::make_shared<RanksGroup>(c10d::resolve_process_group(name)));
    } catch (const c10::Error&) {
      throw InputError(concat("[ranks] this process has no group \"", name, "\": torchrun ... -m cortado makes it"));
    }
  }();
  return ranks;
}

int64_t Ranks::restarts() {
  const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count ? std::atoll(count) : 0;
}

void Ranks::fail(const std::string& message) const {
  if (first()) throw Failure(message);
  throw EndedElsewhere(kFailed);
}

// Replaces c10d's error messages, which have several lines and name sockets and files.
void Ranks::wait(const std::function<void()>& work) const {
  try {
    work();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    const auto has = [&](const char* word) { return message.find(word) != std::string::npos; };
    if (has("imed out") || has("imeout")) {
      throw Failure(concat("[ranks] process ", rank_, " waited in vain for another: one hangs, or is gone"));
    }
    if (has("gloo") || has("NCCL") || has("onnection")) {
      fail("[ranks] another process is gone: its own line says why, or it was killed");
    }
    throw;
  }
}

void Ranks::sum(const Tensor& x) const {
  if (!grouped()) return;
  std::vector<Tensor> list = {x};
  wait([&] { group_->handle->allreduce(list)->wait(); });
}

void Ranks::broadcast(const Tensor& x, int64_t from) const {
  if (!grouped()) return;
  std::vector<Tensor> list = {x};
  c10d::BroadcastOptions options;
  options.rootRank = from;
  wait([&] { group_->handle->broadcast(list, options)->wait(); });
}

std::vector<std::string> Ranks::gather(const std::string& text) const {
  if (!grouped()) return {text};
  const Tensor lengths = at::zeros({size_}, at::kLong);
  lengths.mutable_data_ptr<int64_t>()[rank_] = static_cast<int64_t>(text.size());
  sum(lengths);
  std::vector<std::string> texts;
  for (int64_t from = 0; from < size_; ++from) {
    const int64_t length = lengths.const_data_ptr<int64_t>()[from];
    const Tensor bytes = from == rank_ ? tensor_of_text(text) : at::empty({length}, at::kByte);
    if (length > 0) broadcast(bytes, from);
    texts.emplace_back(static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(length));
  }
  return texts;
}

void Ranks::agree(const std::function<void()>& work) const {
  if (!grouped()) return work();
  std::exception_ptr thrown;
  const std::vector<std::string> reports = gather(report_of(work, thrown));
  for (int64_t from = 0; from < size_; ++from) {
    const std::string& report = reports[static_cast<size_t>(from)];
    if (report.empty()) continue;
    const bool input = report[0] == 'I';
    if (!first()) throw EndedElsewhere(input ? kBadInput : kFailed);
    if (from == 0) std::rethrow_exception(thrown);
    const std::string message = concat("process ", from, ": ", report.substr(1));
    if (input) throw InputError(message);
    throw Failure(message);
  }
}

void Ranks::by_first(const std::function<void()>& work) const {
  agree([&] {
    if (first()) work();
  });
}

void Ranks::require_one(const std::string& what) const {
  by_first([&] { fail_input_if(several(), "[ranks] ", what, " is for one process: leave torchrun out"); });
}

void Ranks::require_same(const std::string& what, const std::string& value) const {
  if (!several()) return;
  const std::vector<std::string> all = gather(value);
  for (int64_t from = 1; from < size_; ++from) {
    if (all[static_cast<size_t>(from)] == all[0]) continue;
    if (first()) throw InputError(concat("[ranks] process ", from, " has another ", what, " than process 0"));
    throw EndedElsewhere(kBadInput);
  }
}

}  // namespace cortado

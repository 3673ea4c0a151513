// The backend's handle of Ranks, apart: its headers are large, and only what calls them needs it.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace cortado {

struct RanksGroup {
  c10::intrusive_ptr<c10d::ProcessGroup> handle;
};

}  // namespace cortado

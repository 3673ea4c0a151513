// The process group of a Ranks. It has its own header because c10d's headers are large, and few files need them.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace cortado {

// c10d's process group.
struct RanksGroup {
  c10::intrusive_ptr<c10d::ProcessGroup> handle;
};

}  // namespace cortado

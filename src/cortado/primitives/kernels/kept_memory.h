// An allocator that keeps large results' memory when they are freed. Touching new pages from the system costs more than
// the scan that fills them.
#pragma once

#include <c10/core/Allocator.h>

namespace cortado::kernels {

// Smaller results (in bytes) come from torch's own allocator.
constexpr std::size_t kLeastKept = std::size_t{1} << 20;

// Allocates blocks of whole huge pages. A freed block waits for the next request of about its size. All waiting blocks
// together hold at most a sixteenth of the machine's memory; beyond that the oldest return to the system.
c10::Allocator* kept_memory();

}  // namespace cortado::kernels

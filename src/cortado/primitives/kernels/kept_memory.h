// Memory of large results, kept when they are freed: new pages from the system cost more to touch than a scan costs to
// fill them.
#pragma once

#include <c10/core/Allocator.h>

namespace cortado::kernels {

// Results of fewer bytes are torch's own allocator's.
constexpr std::size_t kLeastKept = std::size_t{1} << 20;

// Gives blocks of whole huge pages. What is freed waits for the next request of about its size; it is at most a
// sixteenth of the machine's memory, beyond which what waits longest goes back to the system.
c10::Allocator* kept_memory();

}  // namespace cortado::kernels

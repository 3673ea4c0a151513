// Pages of memory: large results come from the system as new pages every time, and to touch those 4 KiB at a time costs
// more than to fill them.
#pragma once

#include <cstddef>

namespace cortado {

// Asks the system for huge pages where this memory, allocated but not yet touched, spans whole ones. Nothing where it
// is small or the system has none.
void prefer_huge_pages(void* data, std::size_t bytes);

// From now on memory that this thread frees stays with the program, up to half a gigabyte, for what it takes next: a
// model takes and frees the same activations layer by layer, and new pages would cost more than many a product. Larger
// pieces are given back as always. For programs; with glibc only.
void keep_freed_memory();

}  // namespace cortado

// Pages of memory: to touch new ones, 4 KiB at a time, costs more than to fill them.
#pragma once

namespace cortado {

// From now on memory that this thread frees stays with the program, up to half a gigabyte, for what it takes next: a
// model takes and frees the same activations layer by layer, and new pages would cost more than many a product. Larger
// pieces are given back as always. For programs; with glibc only.
void keep_freed_memory();

}  // namespace cortado

// How wide the terminal is that somebody reads at.
#pragma once

namespace cortado {

// Columns of the terminal that `descriptor` (STDOUT_FILENO, ...) writes to; 0 where it is none, or does not say.
int terminal_columns(int descriptor);

}  // namespace cortado

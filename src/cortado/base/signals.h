// SIGINT (Ctrl-C) and SIGTERM: the first one asks the running work to stop cleanly, the second ends the process at
// once.
#pragma once

namespace cortado {

// From now on SIGINT and SIGTERM set a flag. A second signal ends the process with exit code 128 + signal.
void catch_interrupts();

// Returns true after the first signal. Long work asks between two steps.
bool interrupt_requested();

// Returns 128 + signal, as a shell does; 0 if there was no signal.
int interrupt_exit_code();

// Forgets the signal. For tests and for programs that continue after an interrupt.
void clear_interrupt();

}  // namespace cortado

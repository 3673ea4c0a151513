// Ctrl-C and SIGTERM: the first asks the running work to end well, the second ends at once.
#pragma once

namespace cortado {

// From here on SIGINT and SIGTERM set a flag; a second one ends the process with exit code 128 + signal.
void catch_interrupts();

// True after the first signal. Work in steps asks between two steps.
bool interrupt_requested();

// 128 + the signal, as a shell would say; 0 without one.
int interrupt_exit_code();

// For tests and for programs that go on after an interrupt.
void clear_interrupt();

}  // namespace cortado

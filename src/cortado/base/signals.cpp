#include "cortado/base/signals.h"

#include <unistd.h>

#include <csignal>

namespace cortado {
namespace {

volatile std::sig_atomic_t caught = 0;

extern "C" void on_interrupt(int signal) {
  if (caught != 0) ::_exit(128 + signal);  // only async-signal-safe calls are allowed here
  caught = signal;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupt_requested() { return caught != 0; }

int interrupt_exit_code() { return caught == 0 ? 0 : 128 + caught; }

void clear_interrupt() { caught = 0; }

}  // namespace cortado

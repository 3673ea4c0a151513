// The program itself: only what must be said before libtorch and its libgomp are loaded, which the commands come with.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  // After its part of the work a thread of libgomp spins for milliseconds before it sleeps. Where others want the cores
  // too, it spins while the thread it waits for has no core: training took eight times as long (scripts/waiting.py).
  if (!std::getenv("OMP_WAIT_POLICY")) ::setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/0);
  void* commands = ::dlopen("libcortado_commands.so", RTLD_NOW);
  using Main = int (*)(int, char**);
  const auto main_of_commands = commands ? reinterpret_cast<Main>(::dlsym(commands, "cortado_main")) : nullptr;
  if (!main_of_commands) {
    std::fprintf(stderr, "cortado: %s\n", ::dlerror());
    return 1;
  }
  const int code = main_of_commands(argc, argv);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these say what they found when a program ends
  // All is written. At its end libtorch would take its operators back one by one, for a third of the time they took to come.
  std::fflush(nullptr);
  std::_Exit(code);
#endif
  return code;
}

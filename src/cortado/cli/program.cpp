// The program itself. It only does what must happen before libtorch and its libgomp are loaded with the commands.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  // After its part of the work, a libgomp thread spins for milliseconds before it sleeps. If other programs also use
  // the cores, it may occupy the core that the thread it waits for needs: training took eight times as long
  // (scripts/waiting.py).
  if (!std::getenv("OMP_WAIT_POLICY")) ::setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/0);
  void* commands = ::dlopen("libcortado_commands.so", RTLD_NOW);
  using Main = int (*)(int, char**);
  const auto main_of_commands = commands ? reinterpret_cast<Main>(::dlsym(commands, "cortado_main")) : nullptr;
  if (!main_of_commands) {
    std::fprintf(stderr, "cortado: %s\n", ::dlerror());
    return 1;
  }
  const int code = main_of_commands(argc, argv);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers report at exit
  // Skips the destructors of libtorch, which would unregister its operators one by one (a third of the time that
  // registering them took). Nothing else is left to do but to flush the output.
  std::fflush(nullptr);
  std::_Exit(code);
#endif
  return code;
}

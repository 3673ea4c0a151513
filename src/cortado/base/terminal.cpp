#include "cortado/base/terminal.h"

#include <sys/ioctl.h>

namespace cortado {

int terminal_columns(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace cortado

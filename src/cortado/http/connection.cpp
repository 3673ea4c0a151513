#include "cortado/http/connection.h"

#include <poll.h>
#include <sys/socket.h>

namespace cortado {

Connection& Connection::current() {
  thread_local Connection connection;
  return connection;
}

bool Connection::has_client() const {
  pollfd state{.fd = socket, .events = POLLIN, .revents = 0};
  if (::poll(&state, 1, 0) <= 0) return true;  // no data, and no end of the stream either
  char next = 0;
  return ::recv(socket, &next, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

// Like the library's own, but for connections of one request.
bool Listener::process_and_close_socket(socket_t socket) {
  Connection& connection = Connection::current();
  connection = {.socket = socket};
  const bool good = httplib::detail::process_client_socket(
      socket, read_timeout_sec_, read_timeout_usec_, write_timeout_sec_, write_timeout_usec_,
      [this](httplib::Stream& stream) {
        bool closed = false;
        return process_request(stream, /*close_connection=*/true, closed, nullptr);
      });
  ::shutdown(socket, SHUT_RDWR);
  httplib::detail::close_socket(socket);
  if (connection.bytes >= kLargeBody) large_ = true;
  connection = {};
  return good;
}

}  // namespace cortado

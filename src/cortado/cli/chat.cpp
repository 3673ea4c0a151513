#include "cortado/cli/chat.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/base/signals.h"
#include "cortado/base/utf8.h"

namespace cortado {
namespace {

// The standard input's lines. Not std::getline, which a signal does not wake.
class Lines {
 public:
  // False at the end, and after Ctrl-C.
  bool next(std::string& line) {
    if (isatty(STDIN_FILENO)) std::cerr << "> " << std::flush;
    while (true) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return true;
      }
      if (ended_) {
        line = std::exchange(buffer_, {});
        return !line.empty();
      }
      if (!fill()) return false;
    }
  }

 private:
  bool fill() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (interrupt_requested()) return false;
    if (::poll(&input, 1, -1) < 0 && errno == EINTR) return !interrupt_requested();
    char bytes[4096];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count < 0 && errno != EINTR) {
      throw Failure(concat("[chat] the standard input cannot be read: ", std::strerror(errno)));
    }
    if (count > 0) buffer_.append(bytes, static_cast<size_t>(count));
    ended_ = count == 0;
    return true;
  }

  std::string buffer_;
  bool ended_ = false;
};

// One question and its answer.
void exchange_words(Conversation& conversation, const std::string& question, const GenerateOptions& options,
                    ChatTotals& totals) {
  const Stopwatch reading;
  const int64_t read = conversation.ask(question, options.cancelled);
  totals.prompt_tokens += read;
  totals.prompt_seconds += reading.seconds();
  if (read == 0) {
    std::cerr << "the question was not asked" << std::endl;
    return;
  }
  const Stopwatch writing;
  bool started = false;
  const auto generated = conversation.answer(options, [&](std::string_view text) {
    while (!started && text.starts_with(' ')) text.remove_prefix(1);  // some templates have a space before the answer
    started = started || !text.empty();
    std::cout << text << std::flush;
  });
  totals.tokens += generated.tokens;
  totals.decode_seconds += writing.seconds();
  std::cout << std::endl;
  if (!std::cout) throw Failure("[chat] the standard output can't be written to");
}

}  // namespace

ChatTotals run_chat(Session& session, const ChatOptions& options) {
  Conversation conversation(session, options.system);
  ChatTotals totals;
  if (options.question) {
    exchange_words(conversation, *options.question, options.generate, totals);
    return totals;
  }
  Lines lines;
  std::string line;
  while (lines.next(line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (const size_t valid = utf8_valid_prefix(line); valid != line.size()) {
      std::cerr << "[chat] the question is not UTF-8 text: byte " << valid << "; it was left out" << std::endl;
      ++totals.refused;
      continue;
    }
    exchange_words(conversation, line, options.generate, totals);
    clear_interrupt();  // it ended the answer
  }
  if (isatty(STDIN_FILENO)) std::cerr << std::endl;
  return totals;
}

}  // namespace cortado

#include "cortado/base/result_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cortado/base/error.h"

namespace cortado {

ResultFile::ResultFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  fail_input_if(file_.number() < 0, "[", path_, "] cannot be written: ", std::strerror(errno));
  fail_input_if(::flock(file_.number(), LOCK_EX | LOCK_NB) != 0, "[", path_, "] another program is writing to it");
  read();
}

void ResultFile::read() {
  const std::string text = read_file(path_);
  const size_t last = text.rfind('\n');
  size_ = last == std::string::npos ? 0 : last + 1;
  // The first line may be unfinished too. It is cut off only if it begins like a line of this format.
  constexpr std::string_view kFirst = "{\"setting\":";
  fail_input_if(text.compare(0, kFirst.size(), kFirst.substr(0, text.size())) != 0, "[", path_,
                "] is not a file of results");
  size_t number = 0;
  for (size_t begin = 0; begin < size_;) {
    const size_t end = text.find('\n', begin);
    ++number;
    take(parse_json(std::string_view(text).substr(begin, end - begin), concat(path_, ":", number)), number);
    begin = end + 1;
  }
  if (size_ < text.size() && ::ftruncate(file_.number(), static_cast<off_t>(size_)) != 0) {
    throw Failure(concat("[", path_, "] cannot be written: ", std::strerror(errno)));
  }
}

void ResultFile::take(const Json& line, size_t number) {
  fail_input_if(!line.is_object(), "[", path_, ":", number, "] is not a result");
  if (!line.contains("setting")) {
    results_.push_back(line);
    return;
  }
  JsonReader reader(line, concat(path_, ":", number));
  const std::string name = reader.text("setting");
  settings_.emplace_back(name, reader.any("value"));
  reader.finish();
}

void ResultFile::require(const std::string& setting, const Json& value, const Json& former) {
  const auto found =
      std::find_if(settings_.begin(), settings_.end(), [&](const auto& entry) { return entry.first == setting; });
  if (found != settings_.end()) {
    fail_input_if(found->second != value && found->second != former, "[", path_, "] was made with ", setting, " ",
                  found->second.dump(), ", not ", value.dump(), ": choose another file");
    return;
  }
  write(Json({{"setting", setting}, {"value", value}}).dump() + "\n");
  settings_.emplace_back(setting, value);
}

void ResultFile::append(const std::vector<Json>& results) {
  std::string text;
  for (const Json& result : results) text += result.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  write(text);
  results_.insert(results_.end(), results.begin(), results.end());
}

void ResultFile::write(const std::string& text) {
  if (file_.number() < 0) return;
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(file_.number(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const std::string reason = std::strerror(errno);
      // Removes the unfinished line. If that fails too, whoever opens the file next removes it.
      [[maybe_unused]] const int cut = ::ftruncate(file_.number(), static_cast<off_t>(size_));
      throw Failure(concat("[", path_, "] cannot be written: ", reason));
    }
    done += static_cast<size_t>(count);
  }
  size_ += text.size();
}

}  // namespace cortado

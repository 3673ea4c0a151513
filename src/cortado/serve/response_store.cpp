#include "cortado/serve/response_store.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <list>
#include <map>
#include <mutex>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/serve/redis.h"
#include "cortado/serve/wire.h"

namespace cortado {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::system_clock;

constexpr const char* kSuffix = ".safetensors";
constexpr int64_t kMostInMemory = int64_t{256} << 20;

at::Tensor find(const NamedTensors& extra, const std::string& name, at::ScalarType type, const std::string& path) {
  for (const auto& [key, tensor] : extra) {
    if (key == name && tensor.scalar_type() == type && tensor.dim() == 1) return tensor;
  }
  throw InputError(concat("[store] ", path, " is no stored response: it has no \"", name, "\""));
}

// Checks everything that a following response relies on.
void check_response(const StoredResponse& response, int64_t vocabulary, const std::string& path) {
  const Json& record = response.record;
  const auto text = [](const Json& object, const char* key) {
    return object.contains(key) && object.at(key).is_string();
  };
  const auto list = [&](const char* key) { return record.contains(key) && record.at(key).is_array(); };
  bool good = record.is_object() && list("messages") && list("input") && text(record, "instructions") &&
              record.value("template_options", Json::object()).is_object() && record.contains("response") &&
              text(record.at("response"), "status");
  for (const char* key : {"messages", "input"}) {
    if (!good) break;
    for (const Json& item : record.at(key)) good = good && text(item, "role");
  }
  for (const int32_t token : response.tokens) good = good && token >= 0 && token < vocabulary;
  fail_input_if(!good, "[store] ", path, " is no stored response");
}

// Keeps responses in the memory of this process.
class MemoryStore : public ResponseStore {
 public:
  explicit MemoryStore(const StoreOptions& options)
      : seconds_(options.seconds), most_bytes_(std::min(options.bytes, kMostInMemory)) {}

  void put(const StoredResponse& response) override {
    StoredResponse copy = response;
    copy.snapshot = {};
    const auto bytes = static_cast<int64_t>(copy.tokens.size() * sizeof(int32_t) + dump(copy.record).size());
    const std::lock_guard lock(mutex_);
    drop(response.id);
    order_.push_back(response.id);
    responses_[response.id] = {std::move(copy), Clock::now(), bytes, std::prev(order_.end())};
    bytes_ += bytes;
    make_room();
  }
  std::optional<StoredResponse> get(const std::string& id) override {
    const std::lock_guard lock(mutex_);
    make_room();
    const auto found = responses_.find(id);
    return found == responses_.end() ? std::nullopt : std::optional(found->second.response);
  }
  bool remove(const std::string& id) override {
    const std::lock_guard lock(mutex_);
    return drop(id);
  }

 private:
  struct Entry {
    StoredResponse response;
    Clock::time_point written;
    int64_t bytes;
    std::list<std::string>::iterator place;
  };

  bool drop(const std::string& id) {
    const auto found = responses_.find(id);
    if (found == responses_.end()) return false;
    bytes_ -= found->second.bytes;
    order_.erase(found->second.place);
    responses_.erase(found);
    return true;
  }
  void make_room() {
    const auto end = Clock::now() - std::chrono::duration<double>(seconds_);
    while (!order_.empty() && (bytes_ > most_bytes_ || responses_.at(order_.front()).written < end)) {
      drop(std::string(order_.front()));
    }
  }

  double seconds_;
  int64_t most_bytes_, bytes_ = 0;
  std::mutex mutex_;
  std::map<std::string, Entry> responses_;
  std::list<std::string> order_;  // the oldest first
};

// Loads a response from the file that read() returns. A damaged one is not the client's fault, so it throws Failure
// instead of InputError.
template <typename Read>
StoredResponse load(const Read& read, const std::string& path, const std::string& id, const Engine& engine) {
  try {
    return response_of_file(read(), id, engine);
  } catch (const InputError& error) {
    throw Failure(error.what());
  } catch (const Json::exception&) {
    throw Failure(concat("[store] ", path, " is no stored response"));
  }
}

// Keeps one file per response.
class FolderStore : public ResponseStore {
 public:
  FolderStore(std::string folder, const StoreOptions& options, const Engine& engine)
      : folder_(std::move(folder)), options_(options), engine_(engine) {
    claim_output_directory(folder_, false);
  }

  void put(const StoredResponse& response) override {
    write_safetensors(path(response.id), file_of_response(response, engine_));
    const std::lock_guard lock(mutex_);
    make_room();
  }
  std::optional<StoredResponse> get(const std::string& id) override {
    if (!is_response_id(id) || !fs::exists(path(id)) || expired(path(id))) return check(), std::nullopt;
    return load([&] { return read_safetensors(path(id)); }, path(id), id, engine_);
  }
  bool remove(const std::string& id) override {
    std::error_code error;
    return is_response_id(id) && fs::remove(path(id), error);
  }
  void check() override {
    if (!is_writable_directory(folder_)) throw Failure(concat("[store] ", folder_, " cannot be written to"));
  }

 private:
  struct File {
    fs::path path;
    fs::file_time_type written;
    int64_t bytes;
  };

  std::string path(const std::string& id) const { return folder_ + "/" + id + kSuffix; }
  bool expired(const std::string& path) const {
    std::error_code error;
    const auto written = fs::last_write_time(path, error);
    return error || fs::file_time_type::clock::now() - written > std::chrono::duration<double>(options_.seconds);
  }
  // Other processes may remove files at the same time.
  std::vector<File> files() const {
    std::vector<File> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_, error)) {
      const std::string name = entry.path().stem();
      if (entry.path().extension() != kSuffix || !is_response_id(name)) continue;
      const auto written = entry.last_write_time(error);
      const auto bytes = error ? 0 : static_cast<int64_t>(entry.file_size(error));
      if (!error) found.push_back({entry.path(), written, bytes});
    }
    return found;
  }
  void make_room() const {
    auto all = files();
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.written > b.written; });
    int64_t bytes = 0;
    for (const File& file : all) {
      bytes += file.bytes;
      std::error_code error;
      if (bytes > options_.bytes || expired(file.path)) fs::remove(file.path, error);
    }
  }

  std::string folder_;
  StoreOptions options_;
  const Engine& engine_;
  std::mutex mutex_;
};

// Keeps the contents of FolderStore's files as values.
class RedisStore : public ResponseStore {
 public:
  RedisStore(const StoreOptions& options, const Engine& engine)
      : redis_(options.place), seconds_(options.seconds), engine_(engine) {}

  void put(const StoredResponse& response) override {
    redis_.set(key(response.id), safetensors_bytes(file_of_response(response, engine_)), seconds_);
  }
  std::optional<StoredResponse> get(const std::string& id) override {
    if (!is_response_id(id)) return std::nullopt;
    const auto bytes = redis_.get(key(id));
    if (!bytes) return std::nullopt;
    return load([&] { return parse_safetensors(*bytes, key(id)); }, key(id), id, engine_);
  }
  bool remove(const std::string& id) override { return is_response_id(id) && redis_.remove(key(id)); }
  void check() override { redis_.check(); }

 private:
  static std::string key(const std::string& id) { return "cortado:response:" + id; }

  Redis redis_;
  double seconds_;
  const Engine& engine_;
};

}  // namespace

bool is_response_id(const std::string& id) {
  return id.size() > 5 && id.size() < 80 && id.starts_with("resp_") &&
         std::all_of(id.begin() + 5, id.end(), [](unsigned char c) { return std::isalnum(c); });
}

TensorFile file_of_response(const StoredResponse& response, const Engine& engine) {
  at::Tensor tokens = at::empty({static_cast<int64_t>(response.tokens.size())}, at::kInt);
  std::copy(response.tokens.begin(), response.tokens.end(), tokens.mutable_data_ptr<int32_t>());
  const ServedModel& served = engine.models()[response.model];
  const auto& snapshot = response.snapshot.snapshot;
  const NamedTensors extra = {{"record", tensor_of_text(dump(response.record))},
                              {"tokens", tokens},
                              {"logits", snapshot ? snapshot->logits : at::empty({0}, at::kFloat)}};
  // Without a snapshot, saves the state of a sequence that has read nothing.
  return (snapshot ? snapshot->state : served.model->zero_state(1)).file(served.model->identity(), extra);
}

StoredResponse response_of_file(const TensorFile& file, const std::string& id, const Engine& engine) {
  const auto& models = engine.models();
  const std::string& path = file.path;
  const auto identity = file.metadata.find("identity");
  fail_input_if(!file.metadata.contains("checksum"), "[store] ", path, " has no checksum");
  std::vector<size_t> fitting;
  for (size_t i = 0; i < models.size(); ++i) {
    if (identity != file.metadata.end() && models[i].model->identity() == identity->second) fitting.push_back(i);
  }
  fail_input_if(fitting.empty(), "[store] ", id, " belongs to a model that is not served here");
  StoredResponse response{.id = id, .record = {}, .model = fitting[0], .tokens = {}};
  NamedTensors extra;
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->state = ModelState::of_file(file, *models[response.model].model, &extra);
  const auto tokens = find(extra, "tokens", at::kInt, path), text = find(extra, "record", at::kByte, path);
  response.record = parse_json(text_of_tensor(text), id);
  response.tokens.assign(tokens.const_data_ptr<int32_t>(), tokens.const_data_ptr<int32_t>() + tokens.numel());
  // One run may be served under two names, for example in two formats.
  for (const size_t other : fitting) {
    if (other == response.model || response.record.at("response").at("model") != models[other].name) continue;
    response.model = other;
    snapshot->state = ModelState::of_file(file, *models[other].model);
  }
  const int64_t vocabulary = models[response.model].model->config().vocabulary;
  check_response(response, vocabulary, path);
  fail_input_if(snapshot->state.rows() != 1, "[store] ", path, " holds ", snapshot->state.rows(), " sequences");
  const int64_t depth = snapshot->state.position.cpu()[0].item<int64_t>();
  fail_input_if(depth < 0 || depth > tokens.numel(), "[store] ", path, " has a state after ", depth, " tokens of ",
                tokens.numel());
  if (depth == 0) return response;
  snapshot->logits = find(extra, "logits", at::kFloat, path);
  fail_input_if(snapshot->logits.size(0) != vocabulary, "[store] ", path, " has ", snapshot->logits.size(0),
                " logits for ", vocabulary, " tokens");
  response.snapshot = {snapshot, depth};
  return response;
}

std::unique_ptr<ResponseStore> open_store(const StoreOptions& options, const Engine& engine) {
  if (options.place.empty()) return std::make_unique<MemoryStore>(options);
  if (options.place.starts_with("redis://")) return std::make_unique<RedisStore>(options, engine);
  return std::make_unique<FolderStore>(options.place, options, engine);
}

}  // namespace cortado

// Builds GGUF files for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/formats/gguf/file.h"

namespace cortado {

// Collects metadata (add) and tensors, and gives the bytes of the file.
class GgufBuilder {
 public:
  void add(const std::string& key, const std::string& text) {
    begin_entry(key, GgufKind::kText);
    put_text(metadata_, text);
  }
  void add(const std::string& key, const char* text) { add(key, std::string(text)); }
  void add(const std::string& key, int value) {
    begin_entry(key, GgufKind::kUint32);
    put(metadata_, static_cast<uint32_t>(value));
  }
  void add(const std::string& key, double value) {
    begin_entry(key, GgufKind::kFloat32);
    put(metadata_, static_cast<float>(value));
  }
  void add(const std::string& key, const std::vector<std::string>& texts) {
    begin_entry(key, GgufKind::kList);
    put(metadata_, static_cast<uint32_t>(GgufKind::kText));
    put(metadata_, static_cast<uint64_t>(texts.size()));
    for (const std::string& text : texts) put_text(metadata_, text);
  }

  // Adds a tensor. `shape` is in torch's order, `data` in the type's binary format. `offset` writes a false offset into
  // the header.
  void tensor(const std::string& name, const std::vector<int64_t>& shape, uint32_t type, const std::string& data,
              std::optional<uint64_t> offset = {}) {
    ++tensors_;
    put_text(infos_, name);
    put(infos_, static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) put(infos_, static_cast<uint64_t>(shape[i]));
    put(infos_, type);
    put(infos_, offset.value_or(data_.size()));
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
  }

  // Returns the file without the tensors' data.
  std::string header(uint32_t version = 3) const {
    std::string bytes = "GGUF";
    put(bytes, version);
    put(bytes, tensors_);
    put(bytes, entries_);
    return bytes + metadata_ + infos_;
  }
  std::string file(uint32_t version = 3) const {
    std::string bytes = header(version);
    bytes.resize((bytes.size() + 31) / 32 * 32);
    return bytes + data_;
  }

  template <typename T>
  static void put(std::string& bytes, T value) {
    const size_t size = bytes.size();
    bytes.resize(size + sizeof value);
    std::memcpy(bytes.data() + size, &value, sizeof value);
  }
  static void put_text(std::string& bytes, std::string_view text) {
    put(bytes, static_cast<uint64_t>(text.size()));
    bytes += text;
  }

 private:
  void begin_entry(const std::string& key, GgufKind kind) {
    ++entries_;
    put_text(metadata_, key);
    put(metadata_, static_cast<uint32_t>(kind));
  }

  uint64_t entries_ = 0, tensors_ = 0;
  std::string metadata_, infos_, data_;
};

}  // namespace cortado

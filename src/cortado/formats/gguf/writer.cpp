#include "cortado/formats/gguf/writer.h"

#include <cstring>

#include "cortado/base/error.h"

namespace cortado {
namespace {

constexpr uint32_t kVersion3 = 3;
constexpr uint64_t kDataAlignment = 32;
constexpr int64_t kRowsAtOnce = 1 << 22;  // values that are encoded at once, at least one row

template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put(std::string& bytes, const std::string& text) {
  put(bytes, static_cast<uint64_t>(text.size()));
  bytes += text;
}

// The numbers of the types in files.
uint32_t kind_number(const std::string&) { return 8; }
uint32_t kind_number(uint32_t) { return 4; }
uint32_t kind_number(int32_t) { return 5; }
uint32_t kind_number(float) { return 6; }
uint32_t kind_number(bool) { return 7; }

template <typename T>
void put_value(std::string& bytes, const T& value) {
  put(bytes, kind_number(value));
  put(bytes, value);
}
template <typename T>
void put_value(std::string& bytes, const std::vector<T>& values) {
  put(bytes, static_cast<uint32_t>(GgufKind::kList));
  put(bytes, kind_number(T()));
  put(bytes, static_cast<uint64_t>(values.size()));
  for (const T& value : values) put(bytes, value);
}

uint64_t size_of(const GgufPart& part) {
  return static_cast<uint64_t>(c10::multiply_integers(part.shape) / part.type->values * part.type->bytes);
}

uint64_t aligned(uint64_t size) { return (size + kDataAlignment - 1) / kDataAlignment * kDataAlignment; }

std::string header_of(const GgufSettings& settings, const std::vector<GgufPart>& tensors) {
  std::string bytes = "GGUF";
  put(bytes, kVersion3);
  put(bytes, static_cast<uint64_t>(tensors.size()));
  put(bytes, static_cast<uint64_t>(settings.size()));
  for (const auto& [key, setting] : settings) {
    put(bytes, key);
    std::visit([&](const auto& value) { put_value(bytes, value); }, setting);
  }
  uint64_t offset = 0;
  for (const GgufPart& part : tensors) {
    put(bytes, part.name);
    put(bytes, static_cast<uint32_t>(part.shape.size()));
    for (size_t i = part.shape.size(); i-- > 0;) put(bytes, static_cast<uint64_t>(part.shape[i]));
    put(bytes, part.type->id);
    put(bytes, offset);
    offset += aligned(size_of(part));
  }
  bytes.resize(aligned(bytes.size()));
  return bytes;
}

// Encodes a piece of the tensor at a time, so that a large one does not need several copies of itself.
void write_tensor(AtomicFile& file, const GgufPart& part) {
  const Tensor values = part.values().detach().to(at::kCPU);
  if (values.sizes() != at::IntArrayRef(part.shape))
    throw Failure(concat("[gguf] ", part.name, " is ", values.sizes(), ", expected ", at::IntArrayRef(part.shape)));
  const Tensor rows = values.reshape({-1, part.shape.back()});
  for (const Tensor& piece : rows.split(std::max<int64_t>(1, kRowsAtOnce / part.shape.back()))) {
    const Tensor bytes = encode_ggml(*part.type, piece);
    file.write(bytes.const_data_ptr(), bytes.nbytes());
  }
  file.write(std::string(aligned(size_of(part)) - size_of(part), '\0'));
}

}  // namespace

void write_gguf(const std::string& path, const GgufSettings& settings, const std::vector<GgufPart>& tensors) {
  AtomicFile file(path);
  file.write(header_of(settings, tensors));
  for (const GgufPart& part : tensors) write_tensor(file, part);
  file.commit();
}

}  // namespace cortado

#include "cortado/formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "cortado/base/error.h"
#include "cortado/base/json.h"
#include "cortado/base/words.h"
#include "cortado/formats/checksum.h"

namespace cortado {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr int64_t kMaxElements = int64_t{1} << 48;
constexpr size_t kMaxDimensions = 32;
constexpr const char* kChecksum = "checksum";

const Words<at::ScalarType> kTypeNames = {{"F64", at::kDouble},
                                          {"F32", at::kFloat},
                                          {"F16", at::kHalf},
                                          {"BF16", at::kBFloat16},
                                          {"I64", at::kLong},
                                          {"I32", at::kInt},
                                          {"I16", at::kShort},
                                          {"I8", at::kChar},
                                          {"U8", at::kByte},
                                          {"BOOL", at::kBool},
                                          {"F8_E4M3", at::kFloat8_e4m3fn}};

std::string type_name(const std::string& tensor, at::ScalarType type) {
  for (const auto& [name, known] : kTypeNames) {
    if (known == type) return name;
  }
  throw Failure(concat("[safetensors] \"", tensor, "\" has a type that the format lacks: ", c10::toString(type)));
}

uint64_t byte_count(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel()) * static_cast<uint64_t>(tensor.element_size());
}

// Adds a tensor's name, type, shape and bytes. For a tensor in a mapped file, pages are released after reading, so that
// the checksum does not keep the file in memory.
void add_tensor(Checksum& checksum, const std::string& name, const at::Tensor& tensor,
                const MappedFile* map = nullptr) {
  std::string description = type_name(name, tensor.scalar_type());
  for (const int64_t size : tensor.sizes()) description += " " + std::to_string(size);
  checksum.add(name);
  checksum.add(description);
  if (!map) return checksum.add(tensor.const_data_ptr(), byte_count(tensor));
  checksum.add(tensor.const_data_ptr(), byte_count(tensor),
               [&](const void* bytes, size_t count) { map->release(bytes, count); });
}

void add_metadata(Checksum& checksum, const std::map<std::string, std::string>& metadata) {
  for (const auto& [key, value] : metadata) {
    if (key == kChecksum) continue;
    checksum.add(key);
    checksum.add(value);
  }
}

std::string checksum_of(const TensorFile& file) {
  Checksum checksum;
  add_metadata(checksum, file.metadata);
  for (const auto& [name, tensor] : file.tensors) {
    add_tensor(checksum, name, tensor, file.map.get());
  }
  return checksum.hex();
}

at::Tensor plain(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

std::string header_text(const TensorFile& file) {
  Json header = Json::object();
  header["__metadata__"] = file.metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : file.tensors) {
    if (name == "__metadata__" || header.contains(name)) {
      throw Failure(concat("[safetensors] two tensors are named \"", name, "\""));
    }
    const uint64_t end = offset + byte_count(tensor);
    header[name] = {{"dtype", type_name(name, tensor.scalar_type())},
                    {"shape", std::vector<int64_t>(tensor.sizes().begin(), tensor.sizes().end())},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data starts at a multiple of 8
  return text;
}

// --- Reading ---

// The bytes of a file, and its error messages.
struct Source {
  const std::string& path;
  std::string_view header;
  const char* data;
  uint64_t data_size;

  template <typename... Parts>
  void fail_if(bool bad, const Parts&... parts) const {
    if (bad) throw InputError(concat("[safetensors] ", path, " is damaged or no safetensors file: ", parts...));
  }
};

Source open_source(const std::string& path, std::string_view bytes) {
  Source source{path, {}, nullptr, 0};
  source.fail_if(bytes.size() < kLengthBytes, "only ", bytes.size(), " bytes");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  source.fail_if(length > kMaxHeader || length > bytes.size() - kLengthBytes, "a header of ", length,
                 " bytes in a file of ", bytes.size());
  source.header = bytes.substr(kLengthBytes, length);
  source.data = bytes.data() + kLengthBytes + length;
  source.data_size = bytes.size() - kLengthBytes - length;
  return source;
}

std::map<std::string, std::string> parse_metadata(const Source& source, const Json& object) {
  source.fail_if(!object.is_object(), "__metadata__ is no object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : object.items()) {
    source.fail_if(!value.is_string(), "__metadata__ has an entry that is no text: \"", key, "\"");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

at::ScalarType parse_type(const Source& source, const std::string& name, const Json& entry) {
  for (const auto& [text, type] : kTypeNames) {
    if (entry == text) return type;
  }
  throw InputError(concat("[safetensors] ", source.path, ": tensor \"", name, "\" has the unknown type ", entry.dump(),
                          "; supported are ", joined(names_in(kTypeNames), ", ")));
}

bool is_count(const Json& value) { return value.is_number_unsigned() && value.get<uint64_t>() <= kMaxElements; }

std::vector<int64_t> parse_shape(const Source& source, const std::string& name, const Json& entry) {
  source.fail_if(!entry.is_array() || entry.size() > kMaxDimensions, "tensor \"", name, "\" has no valid shape");
  std::vector<int64_t> shape;
  int64_t elements = 1;
  for (const Json& size : entry) {
    source.fail_if(!is_count(size), "tensor \"", name, "\" has no valid shape");
    shape.push_back(size.get<int64_t>());
    source.fail_if(shape.back() != 0 && elements > kMaxElements / shape.back(), "tensor \"", name, "\" is too large");
    elements *= shape.back();
  }
  return shape;
}

// Returns a tensor that views `bytes` of the map and keeps the map open; a copy without a map, or if `bytes` is not
// aligned for the type.
at::Tensor tensor_of(const std::shared_ptr<const MappedFile>& map, const char* bytes, const std::vector<int64_t>& shape,
                     at::ScalarType type) {
  if (map && reinterpret_cast<uintptr_t>(bytes) % c10::elementSize(type) == 0) {
    return at::from_blob(const_cast<char*>(bytes), shape, [map](void*) {}, at::TensorOptions(type));
  }
  at::Tensor copy = at::empty(shape, type);
  std::memcpy(copy.mutable_data_ptr(), bytes, byte_count(copy));
  return copy;
}

struct Entry {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> shape;
  uint64_t begin, end;  // in bytes, from the start of the data
};

Entry parse_entry(const Source& source, const std::string& name, const Json& entry) {
  source.fail_if(!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
                     !entry.contains("data_offsets"),
                 "tensor \"", name, "\" needs exactly dtype, shape and data_offsets");
  const Json& offsets = entry["data_offsets"];
  source.fail_if(!offsets.is_array() || offsets.size() != 2 || !is_count(offsets[0]) || !is_count(offsets[1]),
                 "tensor \"", name, "\" has no valid data_offsets");
  const Entry found{name, parse_type(source, name, entry["dtype"]), parse_shape(source, name, entry["shape"]),
                    offsets[0].get<uint64_t>(), offsets[1].get<uint64_t>()};
  source.fail_if(found.end < found.begin || found.end > source.data_size, "tensor \"", name, "\" ends at byte ",
                 found.end, " of ", source.data_size);
  uint64_t bytes = c10::elementSize(found.type);
  for (const int64_t size : found.shape) bytes *= static_cast<uint64_t>(size);
  source.fail_if(bytes != found.end - found.begin, "tensor \"", name, "\" of shape [", at::IntArrayRef(found.shape),
                 "] needs ", bytes, " bytes and has ", found.end - found.begin);
  return found;
}

// The tensors are views of `bytes`, which are the map's, or without a map copies. Copies are checked in place of the
// file: its pages are read once.
TensorFile parse(std::string_view bytes, const std::string& name, const std::shared_ptr<const MappedFile>& map) {
  const Source source = open_source(name, bytes);
  source.fail_if(!source.header.starts_with('{'), "the header is no JSON object");
  const Json header = parse_json(source.header, source.path);
  TensorFile file{{}, {}, map, name};
  // Tensors may be listed in any order in the header; they are returned in the order of their data.
  std::vector<Entry> entries;
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      file.metadata = parse_metadata(source, entry);
    } else {
      entries.push_back(parse_entry(source, key, entry));
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t offset = 0;
  for (const Entry& entry : entries) {
    source.fail_if(entry.begin != offset, "tensor \"", entry.name, "\" starts at byte ", entry.begin,
                   ", the one before it ended at ", offset);
    offset = entry.end;
    const bool empty = entry.begin == entry.end;
    file.tensors.emplace_back(entry.name, empty ? at::empty(entry.shape, entry.type)
                                                : tensor_of(map, source.data + entry.begin, entry.shape, entry.type));
  }
  source.fail_if(offset != source.data_size, "the tensors end at byte ", offset, " of ", source.data_size);
  const auto checksum = file.metadata.find(kChecksum);
  source.fail_if(checksum != file.metadata.end() && checksum->second != checksum_of(file),
                 "its bytes do not match its checksum");
  return file;
}

// Calls write(bytes, count) for the file's parts, in their order.
template <typename Write>
void write_to(const TensorFile& file, const Write& write) {
  TensorFile copy{{}, file.metadata};
  for (const auto& [name, tensor] : file.tensors) copy.tensors.emplace_back(name, plain(tensor));
  copy.metadata[kChecksum] = checksum_of(copy);
  const std::string header = header_text(copy);
  const uint64_t length = header.size();
  write(&length, kLengthBytes);
  write(header.data(), length);
  for (const auto& [name, tensor] : copy.tensors) write(tensor.const_data_ptr(), byte_count(tensor));
}

}  // namespace

std::string content_hash(const NamedTensors& tensors) {
  Checksum checksum;
  for (const auto& [name, tensor] : tensors) add_tensor(checksum, name, plain(tensor));
  return checksum.hex();
}

void write_safetensors(const std::string& path, const TensorFile& file) {
  AtomicFile out(path);
  write_to(file, [&](const void* bytes, uint64_t count) { out.write(bytes, count); });
  out.commit();
}

std::string safetensors_bytes(const TensorFile& file) {
  std::string all;
  write_to(file, [&](const void* bytes, uint64_t count) { all.append(static_cast<const char*>(bytes), count); });
  return all;
}

TensorFile map_safetensors(const std::string& path) {
  const auto map = std::make_shared<const MappedFile>(path);
  return parse(map->text(), path, map);
}

TensorFile read_safetensors(const std::string& path) { return parse(MappedFile(path).text(), path, nullptr); }

TensorFile parse_safetensors(std::string_view bytes, const std::string& name) { return parse(bytes, name, nullptr); }

at::Tensor tensor_of_text(std::string_view text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

std::string text_of_tensor(const at::Tensor& bytes) {
  const auto* data = bytes.const_data_ptr<uint8_t>();
  return {data, data + bytes.numel()};
}

}  // namespace cortado

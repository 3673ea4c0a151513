// RWKV's World tokenizer: the longest token at each place.
#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/tokenizers/bpe/bpe_tokenizer.h"

namespace cortado {

LongestMatch::LongestMatch(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  for (size_t id = 0; id < texts.size(); ++id) {
    if (!texts[id].empty()) sorted.emplace_back(texts[id], static_cast<int32_t>(id));
  }
  std::ranges::sort(sorted);
  struct Prefix {  // the texts that begin with a node's bytes
    size_t node, bytes;
    Span texts;
  };
  nodes_ = {{0, -1, 0, 0}};
  std::vector<Prefix> open = {{0, 0, {0, sorted.size()}}};
  while (!open.empty()) {
    auto [node, bytes, range] = open.back();
    open.pop_back();
    for (; range.begin < range.end && sorted[range.begin].first.size() == bytes; ++range.begin) {
      const int32_t id = sorted[range.begin].second;
      fail_input_if(nodes_[node].token >= 0, "[tokenizer] tokens ", nodes_[node].token, " and ", id, " are equal");
      nodes_[node].token = id;
    }
    nodes_[node].begin = static_cast<uint32_t>(nodes_.size());
    for (size_t at = range.begin; at < range.end;) {
      const char byte = sorted[at].first[bytes];
      const size_t begin = at;
      while (at < range.end && sorted[at].first[bytes] == byte) ++at;
      open.push_back({nodes_.size(), bytes + 1, {begin, at}});
      nodes_.push_back({static_cast<unsigned char>(byte), -1, 0, 0});
      ++nodes_[node].count;
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const Node* one = child(nodes_[0], static_cast<unsigned char>(byte));
    fail_input_if(!one || one->token < 0, "[tokenizer] the vocabulary has no token for byte ", byte);
  }
}

const LongestMatch::Node* LongestMatch::child(const Node& node, unsigned char byte) const {
  const Node* begin = nodes_.data() + node.begin;
  const Node* end = begin + node.count;
  const Node* found = std::lower_bound(begin, end, byte, [](const Node& it, unsigned char b) { return it.byte < b; });
  return found != end && found->byte == byte ? found : nullptr;
}

void LongestMatch::encode(std::string_view text, std::vector<int32_t>& tokens) const {
  for (size_t begin = 0; begin < text.size();) {
    int32_t token = -1;
    size_t end = begin + 1;
    const Node* node = nodes_.data();
    for (size_t at = begin; at < text.size(); ++at) {
      node = child(*node, static_cast<unsigned char>(text[at]));
      if (!node) break;
      if (node->token < 0) continue;
      token = node->token;
      end = at + 1;
    }
    tokens.push_back(token);  // every byte has one
    begin = end;
  }
}

}  // namespace cortado

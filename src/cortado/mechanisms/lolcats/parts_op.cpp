#include "cortado/mechanisms/lolcats/parts_op.h"

#include "cortado/mechanisms/lolcats/fused.h"
#include "cortado/nn/feature_map.h"
#include "cortado/primitives/choice.h"

namespace cortado {
namespace {

// Whether nothing is differentiated: some of the kernels have no backward.
bool inference() { return !at::GradMode::is_enabled(); }

// φ of y [B,H,T,f], transposed.
Tensor features_of_products(const Tensor& y, double least) {
  return choose("lolcats_features of products", y,
                on_cpu(
                    "kernel", [&] { return lolcats_fused::takes({y}); },
                    [&] { return lolcats_fused::features(y, least).transpose(1, 2); }),
                otherwise("ATen", [&] { return learned_features("lolcats", y.transpose(1, 2)).clamp_min(least); }));
}

}  // namespace

Tensor lolcats_features(const Tensor& x, const Tensor& weight, double least) {
  return choose(
      "lolcats_features", x,
      on_cpu(
          "kernel", [&] { return inference() && lolcats_fused::takes({x, weight}); },
          [&] { return lolcats_fused::mapped_features(x, weight, least); }),
      otherwise("product", [&] { return features_of_products(at::matmul(x.transpose(1, 2), weight), least); }));
}

Tensor lolcats_block_sums(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v) {
  return choose("lolcats_block_sums", v,
                on_cpu(
                    "kernel", [&] { return lolcats_fused::takes({phi_q, phi_k, v}); },
                    [&] { return lolcats_fused::block_sums(phi_q, phi_k, v); }),
                otherwise("ATen", [&] { return at::matmul(phi_q, at::matmul(phi_k.transpose(3, 4), v).cumsum(2)); }));
}

Tensor lolcats_join(const SoftmaxPart& near, const Tensor& far, const Tensor& window_factor, LolcatsMixture mixture) {
  return choose(
      "lolcats_join", near.o,
      on_cpu(
          "kernel", [&] { return lolcats_fused::takes({near.o, near.lse, near.row_max, far, window_factor}); },
          [&] { return lolcats_fused::join(near, far, window_factor, mixture); }),
      otherwise("ATen", [&] { return join_linear(near, far, window_factor.to(far.scalar_type()), mixture); }));
}

Tensor lolcats_join_sums(const SoftmaxPart& near, const Tensor& phi_q, const Tensor& sums, const Tensor& window_factor,
                         LolcatsMixture mixture) {
  return choose("lolcats_join_sums", near.o,
                on_cpu(
                    "kernel",
                    [&] {
                      return inference() &&
                             lolcats_fused::takes({near.o, near.lse, near.row_max, phi_q, sums, window_factor});
                    },
                    [&] { return lolcats_fused::join_sums(near, phi_q, sums, window_factor, mixture); }),
                otherwise("product, join", [&] {
                  const Tensor far = at::matmul(phi_q.transpose(1, 2), sums).transpose(1, 2);
                  return lolcats_join(near, far, window_factor, mixture);
                }));
}

}  // namespace cortado

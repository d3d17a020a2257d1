#include "base/mac.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

std::string bytesOf(const std::string &hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += (char)std::stoi(hex.substr(i, 2), nullptr, 16);
  return bytes;
}

std::string hexOf(const uint8_t *bytes, size_t n) {
  static const char digits[] = "0123456789abcdef";
  std::string hex;
  for (size_t i = 0; i < n; i++)
    hex += {digits[bytes[i] >> 4], digits[bytes[i] & 15]};
  return hex;
}

/* RFC 4231. */
TEST(Mac, HasTheValuesOfTheStandard) {
  const struct {
    std::string key, message, mac;
  } cases[] = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {bytesOf("0102030405060708090a0b0c0d0e0f10111213141516171819"), std::string(50, '\xcd'),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than block-size data. The "
       "key needs to be hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const auto &c : cases)
    for (size_t cut : {size_t{0}, size_t{1}, c.message.size()}) { /* in two pieces */
      uint8_t mac[TUTTI_MAC_BYTES];
      const tuttiMacPart pieces[] = {{c.message.data(), cut},
                                     {c.message.data() + cut, c.message.size() - cut}};
      tuttiMac(c.key.data(), c.key.size(), pieces, 2, mac);
      EXPECT_EQ(hexOf(mac, sizeof mac), c.mac);
    }
}

/* Messages whose end, padding and length fill the last block or just do not; byte i is 7 * i + n.
 * The values are those of another implementation. */
TEST(Mac, EndsEachBlockRightly) {
  const struct {
    size_t n;
    std::string mac;
  } cases[] = {
      {0, "5d5d139563c95b5967b9bd9a8c9b233a9dedb45072794cd232dc1b74832607d0"},
      {1, "463d2d9f377da5817e2661c9796c699bc4657a9f3e59a734b73fe99ffb241709"},
      {55, "01dca91a939f07812eaabcd418ec6f383748098b55d0cfddf29d50a184a37b68"},
      {56, "30e483064d73b5600eb480d5714a9b00a2047b704597bb13c613be065f095c6f"},
      {57, "4659f0dedd74dab5a008c3153472dd14ccc3ae6ed7650f2ef2dfe50a569de466"},
      {63, "a931dcfd2ed6c60cb43ac1e2efc232f0cbafce53dfda9be4d93c3584c2acbc56"},
      {64, "d44f0a97b2261859b9d0929b487369f7ab5a1234681665c5e25e67461d315f18"},
      {65, "66e750755f01efdf28dc2ddbf6ecce0d92b570acc806abb259beef427859df91"},
      {119, "3d9d4ad06494f0a5e9781f48a11154cfc7f2e0d6f72ad6f206b585d34d14b556"},
      {120, "f12b436350f3a015b1381d8e38f36ffff5f39d179ef22bd71766065be4877d56"},
      {127, "6a74de1cca598f1b1ccbe4de8fc4cd780794a1b3b7dde5ba98da5f59eb3ae81b"},
      {128, "c85d96b25c8d3cf05ae82b9ffdc305cfd139fab4fa87058721688fdf43be5c4e"},
      {1000, "1968c4fd6ba637fee431bf0325b83b4f3a9e2d0e19db4ddb7da7839b05349050"},
  };
  for (const auto &c : cases) {
    std::vector<uint8_t> message(c.n + 1);
    for (size_t i = 0; i < c.n; i++)
      message[i] = (uint8_t)(7 * i + c.n);
    uint8_t mac[TUTTI_MAC_BYTES];
    const tuttiMacPart piece = {message.data(), c.n};
    tuttiMac("key", 3, &piece, 1, mac);
    EXPECT_EQ(hexOf(mac, sizeof mac), c.mac) << c.n;
  }
}

TEST(Mac, IsTheSameInEveryByteOrNot) {
  uint8_t a[TUTTI_MAC_BYTES] = {1, 2, 3}, b[TUTTI_MAC_BYTES] = {1, 2, 3};
  EXPECT_TRUE(tuttiMacSame(a, b));
  for (size_t i = 0; i < sizeof a; i++) {
    b[i] ^= 128;
    EXPECT_FALSE(tuttiMacSame(a, b)) << i;
    b[i] ^= 128;
  }
}

/* RFC 5869, A.1 to A.3. */
TEST(Derive, HasTheValuesOfTheStandard) {
  std::string up;
  for (int i = 0; i < 256; i++)
    up += (char)i;
  const struct {
    std::string secret, salt, info, out;
  } cases[] = {
      {std::string(22, '\x0b'), up.substr(0, 13), up.substr(0xf0, 10),
       "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"},
      {up.substr(0, 80), up.substr(0x60, 80), up.substr(0xb0, 80),
       "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e5"
       "90e"
       "09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"},
      {std::string(22, '\x0b'), "", "",
       "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"},
  };
  for (const auto &c : cases) {
    std::vector<uint8_t> out(c.out.size() / 2);
    tuttiDerive({c.secret.data(), c.secret.size()}, {c.salt.data(), c.salt.size()},
                {c.info.data(), c.info.size()}, out.data(), out.size());
    EXPECT_EQ(hexOf(out.data(), out.size()), c.out);
  }
}

} // namespace

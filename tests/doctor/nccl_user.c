/* A program made for NCCL; the doctor asks which library it would load. */
int ncclGetVersion(int *version);

int main(void) {
  int version;
  return ncclGetVersion(&version);
}

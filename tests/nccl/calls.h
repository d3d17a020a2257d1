/* Every call of NCCL's API up to 2.32.3: name, result, parameters. nvidia.cc compares the list with
 * NVIDIA's header, prototypes.c with ours; `exports` takes the names of the symbols from it. */
// clang-format off
#define CALLS(X)                                                                                   \
  X(GetVersion, ncclResult_t, (int *))                                                             \
  X(GetErrorString, const char *, (ncclResult_t))                                                  \
  X(GetLastError, const char *, (ncclComm_t))                                                      \
  X(GetUniqueId, ncclResult_t, (ncclUniqueId *))                                                   \
  X(CommInitRank, ncclResult_t, (ncclComm_t *, int, ncclUniqueId, int))                            \
  X(CommInitRankConfig, ncclResult_t, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))      \
  X(CommInitRankScalable, ncclResult_t,                                                            \
    (ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *))                                 \
  X(CommInitAll, ncclResult_t, (ncclComm_t *, int, const int *))                                   \
  X(CommFinalize, ncclResult_t, (ncclComm_t))                                                      \
  X(CommDestroy, ncclResult_t, (ncclComm_t))                                                       \
  X(CommAbort, ncclResult_t, (ncclComm_t))                                                         \
  X(CommRevoke, ncclResult_t, (ncclComm_t, int))                                                   \
  X(CommSplit, ncclResult_t, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *))                 \
  X(CommShrink, ncclResult_t, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int))         \
  X(CommGetAsyncError, ncclResult_t, (ncclComm_t, ncclResult_t *))                                 \
  X(CommCount, ncclResult_t, (const ncclComm_t, int *))                                            \
  X(CommCuDevice, ncclResult_t, (const ncclComm_t, int *))                                         \
  X(CommUserRank, ncclResult_t, (const ncclComm_t, int *))                                         \
  X(MemAlloc, ncclResult_t, (void **, size_t))                                                     \
  X(MemFree, ncclResult_t, (void *))                                                               \
  X(CommRegister, ncclResult_t, (const ncclComm_t, void *, size_t, void **))                       \
  X(CommDeregister, ncclResult_t, (const ncclComm_t, void *))                                      \
  X(CommWindowRegister, ncclResult_t, (ncclComm_t, void *, size_t, ncclWindow_t *, int))           \
  X(CommWindowDeregister, ncclResult_t, (ncclComm_t, ncclWindow_t))                                \
  X(RedOpCreatePreMulSum, ncclResult_t,                                                            \
    (ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t))                    \
  X(RedOpDestroy, ncclResult_t, (ncclRedOp_t, ncclComm_t))                                         \
  X(AllReduce, ncclResult_t, (CALL_BUFFERS, ncclRedOp_t, CALL_WHERE))                              \
  X(Broadcast, ncclResult_t, (CALL_BUFFERS, int, CALL_WHERE))                                      \
  X(Bcast, ncclResult_t, (void *, size_t, ncclDataType_t, int, CALL_WHERE))                        \
  X(Reduce, ncclResult_t, (CALL_BUFFERS, ncclRedOp_t, int, CALL_WHERE))                            \
  X(AllGather, ncclResult_t, (CALL_BUFFERS, CALL_WHERE))                                           \
  X(ReduceScatter, ncclResult_t, (CALL_BUFFERS, ncclRedOp_t, CALL_WHERE))                          \
  X(AlltoAll, ncclResult_t, (CALL_BUFFERS, CALL_WHERE))                                            \
  X(Gather, ncclResult_t, (CALL_BUFFERS, int, CALL_WHERE))                                         \
  X(Scatter, ncclResult_t, (CALL_BUFFERS, int, CALL_WHERE))                                        \
  X(Send, ncclResult_t, (const void *, size_t, ncclDataType_t, int, CALL_WHERE))                   \
  X(Recv, ncclResult_t, (void *, size_t, ncclDataType_t, int, CALL_WHERE))                         \
  X(GroupStart, ncclResult_t, (void))                                                              \
  X(GroupEnd, ncclResult_t, (void))                                                                \
  X(GroupSimulateEnd, ncclResult_t, (ncclSimInfo_t *))

#define CALLS_2_29(X)                                                                              \
  X(CommGetUniqueId, ncclResult_t, (ncclComm_t, ncclUniqueId *))                                   \
  X(CommGrow, ncclResult_t,                                                                        \
    (ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *))                    \
  X(CommSuspend, ncclResult_t, (ncclComm_t, int))                                                  \
  X(CommResume, ncclResult_t, (ncclComm_t))                                                        \
  X(CommMemStats, ncclResult_t, (ncclComm_t, ncclCommMemStat_t, uint64_t *))                       \
  X(WinGetUserPtr, ncclResult_t, (ncclComm_t, ncclWindow_t, void **))                              \
  X(PutSignal, ncclResult_t,                                                                       \
    (const void *, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned int,      \
     CALL_WHERE))                                                                                  \
  X(Signal, ncclResult_t, (int, int, int, unsigned int, CALL_WHERE))                               \
  X(WaitSignal, ncclResult_t, (int, ncclWaitSignalDesc_t *, CALL_WHERE))

#define CALLS_2_30(X)                                                                              \
  X(ParamBind, ncclResult_t, (ncclParamHandle_t *, const char *))                                  \
  X(ParamGetI8, ncclResult_t, (ncclParamHandle_t, int8_t *))                                       \
  X(ParamGetI16, ncclResult_t, (ncclParamHandle_t, int16_t *))                                     \
  X(ParamGetI32, ncclResult_t, (ncclParamHandle_t, int32_t *))                                     \
  X(ParamGetI64, ncclResult_t, (ncclParamHandle_t, int64_t *))                                     \
  X(ParamGetU8, ncclResult_t, (ncclParamHandle_t, uint8_t *))                                      \
  X(ParamGetU16, ncclResult_t, (ncclParamHandle_t, uint16_t *))                                    \
  X(ParamGetU32, ncclResult_t, (ncclParamHandle_t, uint32_t *))                                    \
  X(ParamGetU64, ncclResult_t, (ncclParamHandle_t, uint64_t *))                                    \
  X(ParamGetStr, ncclResult_t, (ncclParamHandle_t, const char **))                                 \
  X(ParamGet, ncclResult_t, (ncclParamHandle_t, void *, int, int *))                               \
  X(ParamGetParameter, ncclResult_t, (const char *, const char **, int *))                         \
  X(ParamGetAllParameterKeys, ncclResult_t, (const char ***, int *))                               \
  X(ParamDumpAll, void, (void))

#define CALLS_2_32(X)                                                                              \
  X(AllReduceConfig, ncclResult_t, (CALL_BUFFERS, ncclRedOp_t, CALL_WHERE, CALL_OPTIONS))          \
  X(BroadcastConfig, ncclResult_t, (CALL_BUFFERS, int, CALL_WHERE, CALL_OPTIONS))                  \
  X(ReduceConfig, ncclResult_t, (CALL_BUFFERS, ncclRedOp_t, int, CALL_WHERE, CALL_OPTIONS))        \
  X(AllGatherConfig, ncclResult_t, (CALL_BUFFERS, CALL_WHERE, CALL_OPTIONS))                       \
  X(ReduceScatterConfig, ncclResult_t, (CALL_BUFFERS, ncclRedOp_t, CALL_WHERE, CALL_OPTIONS))      \
  X(AlltoAllConfig, ncclResult_t, (CALL_BUFFERS, CALL_WHERE, CALL_OPTIONS))                        \
  X(GatherConfig, ncclResult_t, (CALL_BUFFERS, int, CALL_WHERE, CALL_OPTIONS))                     \
  X(ScatterConfig, ncclResult_t, (CALL_BUFFERS, int, CALL_WHERE, CALL_OPTIONS))                    \
  X(SetEncryption, ncclResult_t, (const ncclEncryptionConfig_t *))

/* What the device side's header declares for the host; as in 2.32.3 alone. */
#define CALLS_DEVICE(X)                                                                            \
  X(CommQueryProperties, ncclResult_t, (ncclComm_t, ncclCommProperties_t *))                       \
  X(DevCommCreate, ncclResult_t,                                                                   \
    (ncclComm_t, ncclDevCommRequirements_t const *, ncclDevComm_t *))                              \
  X(DevCommDestroy, ncclResult_t, (ncclComm_t, ncclDevComm_t const *))                             \
  X(GetLsaMultimemDevicePointer, ncclResult_t, (ncclWindow_t, size_t, void **))                    \
  X(GetMultimemDevicePointer, ncclResult_t,                                                        \
    (ncclWindow_t, size_t, ncclMultimemHandle_t, void **))                                         \
  X(GetLsaDevicePointer, ncclResult_t, (ncclWindow_t, size_t, int, void **))                       \
  X(GetPeerDevicePointer, ncclResult_t, (ncclWindow_t, size_t, int, void **))                      \
  X(GetMultimemDeviceLeInfo, ncclResult_t, (ncclWindow_t, size_t, ncclCftLeId *, size_t *))        \
  X(GetCftDeviceLeInfo, ncclResult_t,                                                              \
    (ncclWindow_t, size_t, int, ncclTeam_t, ncclCftLeId *, size_t *))                              \
  X(GetPeerDeviceLeInfo, ncclResult_t, (ncclWindow_t, size_t, int, ncclCftLeId *, size_t *))       \
  X(TeamWorld, ncclTeam_t, (ncclComm_t))                                                           \
  X(TeamLsa, ncclTeam_t, (ncclComm_t))                                                             \
  X(TeamCft, ncclTeam_t, (ncclComm_t, ncclCftTeamMode_t))                                          \
  X(TeamCftMultimem, ncclTeam_t, (ncclComm_t))                                                     \
  X(TeamRankToWorld, int, (ncclComm_t, ncclTeam_t, int))                                           \
  X(TeamRankToLsa, int, (ncclComm_t, ncclTeam_t, int))                                             \
  X(TeamRail, ncclTeam_t, (ncclComm_t))                                                            \
  X(LsaBarrierCreateRequirement, ncclResult_t,                                                     \
    (ncclTeam_t, int, ncclLsaBarrierHandle_t *, ncclDevResourceRequirements_t *))                  \
  X(GinBarrierCreateRequirement, ncclResult_t,                                                     \
    (ncclComm_t, ncclTeam_t, int, ncclGinBarrierHandle_t *, ncclDevResourceRequirements_t *))      \
  X(CftBarrierCreateRequirement, ncclResult_t,                                                     \
    (ncclTeam_t, int, ncclCftBarrierHandle_t *, ncclDevResourceRequirements_t *))                  \
  X(LLA2ACalcSlots, int, (int, int))                                                               \
  X(LLA2ACreateRequirement, ncclResult_t,                                                          \
    (int, int, ncclLLA2AHandle_t *, ncclDevResourceRequirements_t *))

/* In the library, but in no header that says their types on Linux. */
#define CALLS_HIDDEN(X)                                                                            \
  X(ResetDebugInit, void, (void))                                                                  \
  X(GinInboxA2ACreateRequirement, ncclResult_t, (void))                                            \
  X(GinOutboxCreateRequirement, ncclResult_t, (void))
// clang-format on

#define CALL_BUFFERS const void *, void *, size_t, ncclDataType_t
#define CALL_WHERE   ncclComm_t, cudaStream_t
#define CALL_OPTIONS const ncclCollConfig_t *
